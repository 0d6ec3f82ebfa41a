"""From words on the command line to frozen dataclasses, by tyro, with help that says what a default of None means."""

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
    options: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(
        command, args=list(argv), prog=prog, description=help, registry=_registry(), config=_CONFIG, **options
    )


_CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.OmitArgPrefixes)


def _registry() -> ConstructorRegistry:
    registry = ConstructorRegistry()
    registry.primitive_rule(_optional)
    return registry


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """`int | None` is an INT that may be `auto`, not a choice between a number and the word None."""
    if typing.get_origin(info.type) not in (types.UnionType, typing.Union):
        return None
    kind, *others = typing.get_args(info.type)
    if others != [type(None)] or not isinstance(kind, type):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH" if hasattr(kind, "joinpath") else kind.__name__.upper(),
        instance_from_str=lambda words: None if words[0] == AUTO else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [AUTO if value is None else str(value)],
    )
