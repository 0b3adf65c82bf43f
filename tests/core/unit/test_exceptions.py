"""An error should be a sentence with its fields, and the fields should stay with it."""

import string

from dfmeta import errors
from dfmeta.errors import BadRequestError, DfmetaError


def tree(root: type[DfmetaError] = DfmetaError) -> list[type[DfmetaError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in tree(child))]


def test_error_names_and_keeps_its_fields() -> None:
    kinds = [kind for kind in tree() if kind.__module__ == errors.__name__]
    assert len(kinds) > 50
    for kind in kinds:
        fields = {name for _text, name, _spec, _conv in string.Formatter().parse(kind.sentence)}
        values = {name: f"<{name}>" for name in fields if name}
        # Kept for a metric, and not in the sentence.
        kept = {"reason": "body"} if kind is BadRequestError else {}
        error = kind(**values, **kept)
        assert error.fields == values | kept, kind
        for name, value in values.items():
            assert value in str(error), kind
            assert getattr(error, name) == value
        assert not hasattr(error, "nothing"), kind
