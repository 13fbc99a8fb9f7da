"""Slips in what a process is told: configuration, settings, key and trust stores."""

from __future__ import annotations

from tests.mutation.trial import Slip

_KEYSTORE = "engine/net/keystore.py"
_TLS = "engine/net/tls.py"
_CONFIGURATION = "engine/net/configuration.py"
_SETTINGS = "engine/net/settings.py"
_OF_STORES = ("tests/net/test_stores.py",)
_OF_TLS = ("tests/net/test_tls.py",)
_OF_CONFIGURATION = ("tests/node/test_configuration.py",)
_OF_VALUES = ("tests/net/test_values.py",)

SETTINGS: tuple[Slip, ...] = (
    Slip(
        _KEYSTORE,
        "    _check_whole_pem(certificate, chain)\n    return",
        "    return",
        _OF_STORES,
        "a node shows half of its chain",
    ),
    Slip(
        _KEYSTORE,
        "except (ValueError, TypeError, UnsupportedAlgorithm):\n        why",
        "except ValueError:\n        why",
        _OF_STORES,
        "a key of an odd kind is a bug of ours",
    ),
    Slip(
        _KEYSTORE,
        "        left.remove(above)\n",
        "",
        _OF_TLS,
        "authorities that vouch for one another stop a start for ever",
    ),
    Slip(
        _KEYSTORE,
        "KeyMaterial(key, _ordered_chain(certificate, [one for _, one in others]))",
        "KeyMaterial(key, (certificate, *(one for _, one in others)))",
        _OF_STORES,
        "a node shows strangers' certificates",
    ),
    Slip(
        _KEYSTORE,
        "    if not material.chain:\n        raise",
        "    if False:\n        raise",
        _OF_STORES,
        "a key without a certificate is a bug of ours",
    ),
    Slip(
        _TLS,
        "    elif trust_all:\n",
        "    elif trust_all or not options.verify_names:\n",
        _OF_TLS,
        "a client that checks no names trusts everybody",
    ),
    Slip(
        _TLS,
        "options.trust_store_password, options.trust_store_type",
        "options.key_store_password, options.trust_store_type",
        _OF_TLS,
        "a trust store does not open",
    ),
    Slip(
        _TLS,
        "    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN\n",
        "",
        _OF_TLS,
        "a certificate that is trusted by itself is refused",
    ),
    Slip(
        _TLS,
        '    except ssl.SSLError as error:\n        raise InvalidRequestError(f"{options.trust_store}: its',
        '    except ValueError as error:\n        raise InvalidRequestError(f"{options.trust_store}: its',
        _OF_TLS,
        "a damaged trust store is a bug of ours",
    ),
    Slip(
        _TLS,
        'cadata=b"".join(trusted)',
        "cadata=trusted[0]",
        _OF_TLS,
        "clients of the second authority are shut out",
    ),
    Slip(
        "engine/net/tls_options.py",
        'names.append(f"{name}-file" if one.secret else name)',
        "names.append(name)",
        _OF_TLS,
        "a password is taken from the command line, which everybody sees",
    ),
    Slip(
        "engine/net/setting_kinds.py",
        "text.strip(), re.ASCII",
        "text.strip()",
        _OF_CONFIGURATION,
        "a port in digits of another script",
    ),
    Slip(
        _CONFIGURATION,
        "    if file is None and declared.file_variable in variables:",
        "    if declared.file_variable in variables:",
        _OF_CONFIGURATION,
        "a file that was named is not the one that is read",
    ),
    Slip(
        _CONFIGURATION,
        "        seen[entry.key] = entry.line\n",
        "        seen.setdefault(entry.key, entry.line)\n",
        _OF_CONFIGURATION,
        "the second of three places is not told",
    ),
    Slip(
        _CONFIGURATION,
        "if not variable.startswith(declared.prefix) or variable == declared.file_variable:",
        "if not variable.startswith(declared.prefix):",
        _OF_CONFIGURATION,
        "the variable that names the file is told as unknown",
    ),
    Slip(
        _CONFIGURATION,
        "            if new.value == old.value:\n                kept.append(new)",
        "            if new.value == old.value:\n                kept.append(old)",
        _OF_CONFIGURATION,
        "a place is told that is no longer there",
    ),
    Slip(
        _CONFIGURATION,
        "                kept.append(old)\n                waiting.append(new)",
        "                kept.append(old)\n                waiting.append(old)",
        _OF_CONFIGURATION,
        "what waits for a restart is told with the old value",
    ),
    Slip(
        _CONFIGURATION,
        "                kept.append(new)\n                changed.append(new)",
        "                kept.append(new)\n                changed.append(old)",
        _OF_CONFIGURATION,
        "what changed is told with the old value",
    ),
    Slip(
        "engine/net/configuration_file.py",
        "    loader.flatten_mapping(node)\n",
        "",
        _OF_CONFIGURATION,
        "what is merged in has no effect",
    ),
    Slip(
        _SETTINGS,
        "return field(default=default, repr=not secret,",
        "return field(default=default,",
        _OF_VALUES,
        "a password stands in a log",
    ),
    Slip(
        _SETTINGS,
        "reloadable = around.reloadable or declared.reloadable\n                inner",
        "reloadable = declared.reloadable\n                inner",
        _OF_VALUES,
        "a setting within a group is not reloaded",
    ),
    Slip(
        _SETTINGS,
        "elif all(values.get((*here, one)) is not None for one in needed(declared.kind))",
        "elif any(values.get((*here, one)) is not None for one in needed(declared.kind))",
        _OF_VALUES,
        "half of an optional group is an error within",
    ),
    Slip(
        _SETTINGS,
        "            yield from _groups(declared.kind, (*path, each.name))\n",
        "",
        _OF_VALUES,
        "a group within a group is not looked at",
    ),
)
