"""From words on the command line to frozen dataclasses, by tyro, with help that says what a default of None means."""

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

Command = TypeVar("Command")
AUTO = "auto"  # how None is written and shown


def parse(
    command: type[Command], argv: Sequence[str], *, prog: str, help: str, default: Command | None = None
) -> Command:
    """The command's dataclass, filled from `argv`; wrong flags and `--help` end the process with a message.

    Args:
        command: whose fields are the flags, and whose field docstrings are their help.
        argv: what follows the command's name.
        prog: the command as it is called.
        help: what it does, with examples; line breaks are kept.
        default: values of the flags that are not given.
    """
    _require_whole_flags(command, argv)
    options: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(
        command, args=list(argv), prog=prog, description=help, registry=_registry(), config=_CONFIG, **options
    )


def _require_whole_flags(command: type, argv: Sequence[str]) -> None:
    """`--iters` is not a flag, but it begins like one: say which, where the parser would guess by letters in common."""
    flags = _flags(command)
    for word in argv:
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and len(name) > 4 and name not in flags:
            if near := [flag for flag in flags if flag.startswith(name) or flag.startswith(name.rstrip("s"))]:
                raise ValueError(f"there is no flag {name}: did you mean {' or '.join(near)}?")


def _flags(command: type) -> list[str]:
    kinds = typing.get_type_hints(command)
    found = []
    for field in dataclasses.fields(command):
        kind = kinds[field.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            found += _flags(kind)
        else:
            dashed = field.name.replace("_", "-")
            found += [f"--{dashed}", *([f"--no-{dashed}"] if kind is bool else [])]
    return found


_CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.OmitArgPrefixes)


def _registry() -> ConstructorRegistry:
    registry = ConstructorRegistry()
    registry.primitive_rule(_optional)
    return registry


_WORDS = PrimitiveConstructorSpec(
    nargs="*",
    metavar="STR ...",
    instance_from_str=lambda words: None if list(words) == [AUTO] else tuple(words),
    is_instance=lambda value: value is None or isinstance(value, tuple),
    str_from_instance=lambda value: [AUTO] if value is None else list(value),
)


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """`int | None` is an INT that may be `auto`, not a choice between a number and the word None."""
    if typing.get_origin(info.type) not in (types.UnionType, typing.Union):
        return None
    kind, *others = typing.get_args(info.type)
    if others == [type(None)] and kind == tuple[str, ...]:
        return _WORDS
    if others != [type(None)] or not isinstance(kind, type):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH" if hasattr(kind, "joinpath") else kind.__name__.upper(),
        instance_from_str=lambda words: None if words[0] == AUTO else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [AUTO if value is None else str(value)],
    )
