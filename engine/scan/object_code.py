"""Machine code from LLVM IR, compiled once on a machine and then loaded from the user's cache.

Only compiling needs numba; loading an object file takes llvmlite alone, and a few hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from waltzctl.engine.scan import code_cache


class CodeUnavailableError(Exception):
    """This code cannot run on this machine; never leaves this package."""


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Addresses of functions by name, valid as long as `keep` is referenced."""

    addresses: Mapping[str, int]
    keep: object


def code_name(kind: str, sources: Sequence[str]) -> str:
    """The name of code in the cache: `kind`, and a digest of everything that the code depends on.

    `sources`: names of source files in this package.  Imports llvmlite; raises ImportError without it.
    """
    import llvmlite
    import llvmlite.binding as llvm

    digest = sha256()
    here = Path(__file__).parent
    for part in (llvmlite.__version__, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()):
        digest.update(part.encode() + b"\n")
    for name in (*sources, "object_code.py"):
        digest.update((here / name).read_bytes())
    return f"{kind}-{digest.hexdigest()[:32]}"


def _machine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="small",
    )


def compile_object(texts: Mapping[str, str]) -> bytes:
    """An object file with one function for each name; each text is LLVM IR with one externally visible definition.

    Raises CodeUnavailableError for a function that calls external symbols.
    """
    import llvmlite.binding as llvm

    whole = llvm.parse_assembly("")
    for name, text in texts.items():
        module = llvm.parse_assembly(text)
        (function,) = [f for f in module.functions if not f.is_declaration and f.linkage is llvm.Linkage.external]
        if any(f.is_declaration and not f.name.startswith("llvm.") for f in module.functions):
            raise CodeUnavailableError(f"{name} calls something outside")
        function.name = name
        whole.link_in(module)
    return bytes(_machine().emit_object(whole))


def load_object(code: bytes, names: Sequence[str]) -> LoadedCode:
    """Load an object file.  Raises CodeUnavailableError when a function is not in it."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(name) for name in names}
    if not all(addresses.values()):
        raise CodeUnavailableError("the object file does not hold what it should")
    return LoadedCode(addresses, engine)


def cached_object(name: str, make: Callable[[], bytes]) -> bytes:
    """The object file cached under `name`; if there is none, it is made and cached."""
    code = code_cache.get(name)
    if code is None:
        code = make()
        code_cache.put(name, code)
    return code
