"""The command line of a process with settings: ``--config``, its settings as options, and ``--show-config``.

The names of the options, and their help, follow from the declarations (`waltzctl.engine.net.settings`), which are imported when
the command's parser is built, and not for other commands or for the list in ``waltzctl --help``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from waltzctl.options import path_of

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.net.configuration import Configuration
    from waltzctl.engine.net.settings import Setting, Settings

Options = TypeVar("Options")
CONFIG = "config"
SHOW_CONFIG = "show_config"


@dataclass(frozen=True, slots=True)
class SettingsGiven(Generic[Options]):
    """The settings on the command line: their texts by name, the file, and whether they are only to be shown."""

    declared: Settings[Options]
    texts: Mapping[str, str] = field(repr=False)  # may contain passwords
    file: Path | None
    show_config: bool

    def read(self, **otherwise: str | None) -> Configuration[Options]:
        """Read the configuration; raises as `load_configuration`.

        `otherwise`: texts of settings whose options were not given.
        """
        from waltzctl.engine.net.configuration import Given, load_configuration

        more = {name.replace("_", "-"): text for name, text in otherwise.items() if text is not None}
        given = [Given(name, text) for name, text in {**more, **self.texts}.items()]
        return load_configuration(self.declared, file=self.file, environment=os.environ, given=given)


def show_settings(configuration: Configuration[Any], console: Console) -> None:
    """``--show-config``: show each setting's value and its source; then raise an error of the configuration."""
    from waltzctl.objects.serve_objects import SETTING

    for one in configuration.settings:
        console.emit(SETTING.shown(one))
    for note in configuration.notes:
        console.note(note)
    configuration.check()


class WithSettings:
    """A command whose argument `settings` is built from options by its declared settings; see `with_settings`."""

    def __init__(self, run: Callable[..., Any], declared: Callable[[], Settings[Any]]) -> None:
        self.__name__, self.__doc__, self.__module__ = run.__name__, run.__doc__, run.__module__
        self._run = run
        self.declared = declared

    @property
    def __signature__(self) -> inspect.Signature:
        """The command's own parameters, with those of the settings where it takes `settings`."""
        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(self._run, eval_str=True).parameters.values():
            made = _parameters(self.declared()) if one.name == "settings" else (one,)
            parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in made]
        return inspect.Signature(parameters)

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]  # an attribute of the object, not of its class
        return {one.name: one.annotation for one in self.__signature__.parameters.values()}

    def __call__(self, **given: Any) -> Any:
        """Run the command."""
        declared = self.declared()
        texts = dict(_texts(declared, given))
        file = given.pop(CONFIG)
        settings = SettingsGiven(
            declared, texts, None if file is None else path_of(file, name="--config"), given.pop(SHOW_CONFIG)
        )
        return self._run(settings=settings, **given)


def with_settings(declared: Callable[[], Settings[Any]]) -> Callable[[Callable[..., Any]], WithSettings]:
    """A decorator that gives a command the options of its settings, ``--config`` and ``--show-config``, as `settings`.

    `declared` imports the declarations.
    """
    return lambda run: WithSettings(run, declared)


def _parameters(declared: Settings[Any]) -> Iterator[inspect.Parameter]:
    file = typer.Option("--config", metavar="FILE", help="Configuration file, in the format of the release.")
    yield _parameter(CONFIG, str | None, file, None)
    for one in declared.listed:
        yield from _of_setting(one)
    show = typer.Option("--show-config", help="Show the effective settings and their origin; start nothing.")
    yield _parameter(SHOW_CONFIG, bool, show, False)


def _of_setting(one: Setting) -> Iterator[inspect.Parameter]:
    how = one.declared.option
    if how is None:
        return
    metavar = how.metavar or one.kind.metavar
    if how.argument:
        argument = typer.Argument(metavar=metavar, help=one.help, show_default=False)
        yield _parameter(_identifier(one.name), str | None, argument, None)
    elif not metavar:
        yield _parameter(_identifier(one.name), bool, typer.Option(one.option, help=one.help), False)
    elif not how.only_file:
        also = [f"--{how.also}"] if how.also else []
        told = f"{one.help.removesuffix('.')}; better give a file." if one.secret else one.help
        yield _parameter(
            _identifier(one.name), str | None, typer.Option(one.option, *also, metavar=metavar, help=told), None
        )
    if one.secret:
        also = [f"--{how.also}-file"] if how.also else []
        told = f"First line: {one.meaning}."
        option = typer.Option(one.file_option, *also, metavar="FILE", help=told)
        yield _parameter(_identifier(one.file_option), str | None, option, None)


def _parameter(name: str, kind: Any, parameter: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, parameter]
    )


def _identifier(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _texts(declared: Settings[Any], given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Remove the settings from `given`: their names and texts."""
    from waltzctl.engine.net.setting_kinds import PATH

    for one in declared.listed:
        for option in one.on_command_line:
            text = given.pop(_identifier(one.name if option == one.option else option))
            if text is None or text is False:
                continue
            if one.kind is PATH or option == one.file_option:
                path_of(text, name=option)
            yield (one.name if option == one.option else f"{one.name}-file"), "true" if text is True else text
