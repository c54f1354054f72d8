"""What every part of a pipeline's description has in common."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from tallygate.errors import ConfigError


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


def _as_texts(options: Any) -> Any:
    """As Spark takes options; YAML reads `true` and `1` as other things than texts."""
    if not isinstance(options, dict):
        return options
    return {name: _as_text(value) for name, value in options.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Options = Annotated[
    dict[str, str],
    BeforeValidator(_as_texts, json_schema_input_type=dict[str, str | bool | int | float]),
]
"""Options of Spark's readers."""


def refusing(read: Callable[[str], Any], *words: str) -> AfterValidator:
    """A check that a text is one of the words, or can be read; it is refused where it stands."""

    def check(text: Any) -> Any:
        if isinstance(text, str) and text not in words:
            try:
                read(text)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return text

    return AfterValidator(check)


class PlacedError(ValueError):
    """What is wrong with one part of a pipeline, found by looking at all of it."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place
        """The path of that part, relative to the part that raised this."""


class Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        populate_by_name=True,
    )
