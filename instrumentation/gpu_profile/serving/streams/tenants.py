"""Names of tenants and models, bounded in number and in length. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

#: The name of requests without a tenant, and of all tenants beyond the most.
NO_TENANT, OTHER = "none", "other"
_LONGEST: Final = 64
_MOST_MODELS: Final = 16


class ModelUse(NamedTuple):
    """A tenant's use of a model. `model` is "" if it is not reported."""

    tenant: str
    model: str


class Tenants:
    """The first names are kept, at most `most` of them. All others are `other`."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._names: set[str] = set()

    def name(self, raw: object) -> str:
        """The label of a tenant: a string or a number of at most 64 printable characters."""
        if isinstance(raw, bool) or not isinstance(raw, str | int) or (isinstance(raw, int) and abs(raw) >= 2**64):
            return NO_TENANT
        # A longer text is cut before its characters are read.
        text = "".join(each if each.isprintable() else "?" for each in str(raw)[:_LONGEST]).strip()
        if not text:
            return NO_TENANT
        if text not in self._names:
            if len(self._names) >= self._most:
                return OTHER
            self._names.add(text)
        return text


class ModelUses:
    """The bounded names of tenants, at most `most` of them, and of the models that they use: at most 16."""

    def __init__(self, most: int) -> None:
        self._tenants, self._models = Tenants(most), Tenants(_MOST_MODELS)

    def of(self, tenant: object, model: str) -> ModelUse:
        """The labels of a request's tenant and model."""
        return ModelUse(self._tenants.name(tenant), self._models.name(model) if model else "")
