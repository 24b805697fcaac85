# SPDX-License-Identifier: Apache-2.0
"""The result of a sharded head: logits; this rank holds some classes.

A loss function for whole logits still works if it only changes their shape and takes their cross-entropy:

    F.cross_entropy(logits.float().reshape(-1, logits.size(-1)), targets.reshape(-1), ignore_index=0)

Anything else would need classes on other ranks, and is refused by name; `whole()` fetches all classes.
"""

import torch
from torch.nn import functional

from .cross_entropy import vocabulary_cross_entropy
from .shard import Shard


class ShardedLogits:
    """Has the shape of the whole; `part` is what this rank holds, cut along dimension `axis`."""

    def __init__(self, part: torch.Tensor, shard: Shard, classes: int, axis: int = -1):
        self.part, self.shard, self.classes = part, shard, classes
        self.axis = axis % part.dim()

    @property
    def shape(self) -> torch.Size:
        sizes = list(self.part.shape)
        sizes[self.axis] = self.classes
        return torch.Size(sizes)

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.part.dim()

    ndim = property(dim)
    dtype = property(lambda self: self.part.dtype)
    device = property(lambda self: self.part.device)
    requires_grad = property(lambda self: self.part.requires_grad)

    def whole(self) -> torch.Tensor:
        """All logits, on every rank; a collective, which every rank must call."""
        return self.shard.gather(self.part, self.axis, self.classes)

    # ---- methods that only change the shape

    def float(self):
        return self._like(self.part.float())

    def to(self, *args, **kwargs):
        return self._like(self.part.to(*args, **kwargs))

    def contiguous(self):
        return self._like(self.part.contiguous())

    def view(self, *sizes):
        return self.reshape(*sizes)

    def reshape(self, *given):
        """The classes must stay the last dimension."""
        sizes = list(given[0] if len(given) == 1 and not isinstance(given[0], int) else given)
        if self.axis != self.dim() - 1:
            raise self._refused("reshape() where the classes are not the last dimension")
        rows = self.shape[:-1].numel()
        if sizes and sizes[-1] == -1 and -1 not in sizes[:-1] and torch.Size(sizes[:-1]).numel() == rows:
            sizes[-1] = self.classes
        if not sizes or sizes[-1] != self.classes:
            raise self._refused(f"reshape({', '.join(map(str, sizes))})")
        return self._like(self.part.reshape([*sizes[:-1], self.part.size(-1)]), len(sizes) - 1)

    def flatten(self, start_dim=0, end_dim=-1):
        start, end = start_dim % self.dim(), end_dim % self.dim()
        if start <= self.axis <= end and start != end:
            raise self._refused("flatten() over the classes")
        return self._like(self.part.flatten(start, end), self.axis - (end - start if end < self.axis else 0))

    def transpose(self, dim0, dim1):
        a, b = dim0 % self.dim(), dim1 % self.dim()
        return self._like(self.part.transpose(a, b), {a: b, b: a}.get(self.axis, self.axis))

    def permute(self, *dims):
        order = [
            d % self.dim() for d in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)
        ]
        return self._like(self.part.permute(order), order.index(self.axis))

    def __getitem__(self, index):
        """Slices of the other dimensions: logits[:, :-1] or logits[..., :-1, :]."""
        index = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(i, slice) or i is Ellipsis for i in index):
            raise self._refused("an index that is not a slice")
        if Ellipsis in index:
            gap = index.index(Ellipsis)
            index = index[:gap] + (slice(None),) * (self.dim() - len(index) + 1) + index[gap + 1 :]
        if len(index) > self.axis and index[self.axis] != slice(None):
            raise self._refused("a slice of the classes")
        return self._like(self.part[index])

    def _like(self, part, axis=None):
        return ShardedLogits(part, self.shard, self.classes, self.axis if axis is None else axis)

    # ---- torch's functions

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is functional.cross_entropy:
            return cls._cross_entropy(*args, **kwargs)
        name = getattr(function, "__name__", str(function))
        if name in FORMS and isinstance(args[0], cls):
            return getattr(args[0], name)(*args[1:], **kwargs)
        raise cls._refused(f"torch's {name}()")

    @staticmethod
    def _cross_entropy(
        logits,
        target,
        weight=None,
        size_average=None,
        ignore_index=-100,
        reduce=None,
        reduction="mean",
        label_smoothing=0.0,
    ):
        """Classes are dimension 1, or 0 if it is the only one, as in torch."""
        if weight is not None or size_average is not None or reduce is not None:
            raise ShardedLogits._refused("cross_entropy() with class weights, size_average or reduce")
        if not isinstance(logits, ShardedLogits) or target.is_floating_point():
            raise ShardedLogits._refused("cross_entropy() of probabilities")
        if logits.axis != min(1, logits.dim() - 1):
            raise ShardedLogits._refused(
                f"cross_entropy() of {tuple(logits.shape)} with the classes in dimension {logits.axis}"
            )
        part = logits.part.movedim(logits.axis, -1)
        losses = vocabulary_cross_entropy(
            part.reshape(-1, part.size(-1)),
            target.reshape(-1),
            logits.shard,
            logits.classes,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
        return losses.reshape(target.shape) if reduction == "none" else losses

    @staticmethod
    def _refused(what: str) -> TypeError:
        return TypeError(
            f"ostinato: {what} on the logits of a sharded head, of which each rank holds some of the classes: only reshaping and "
            "cross_entropy() work on them; logits.whole() fetches all classes"
        )

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(str(self._refused(f"{name}()")))


FORMS = {"reshape", "flatten", "transpose", "permute"}


def _refusing(operator: str):
    def refuse(self, *_):
        raise self._refused(f"the operator {operator}")

    return refuse


BINARY = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
}
COMPARING = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
# Python looks operators up on the class, past __getattr__, and == would be False without a word. (The hash stays that
# of the object: only an __eq__ in the class body would remove it.)
for _operator, _name in [
    *BINARY.items(),
    *((operator, f"r{name}") for operator, name in BINARY.items()),
    *COMPARING.items(),
    ("-", "neg"),
]:
    setattr(ShardedLogits, f"__{_name}__", _refusing(_operator))
