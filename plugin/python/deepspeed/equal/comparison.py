# SPDX-License-Identifier: Apache-2.0
"""Whether two trainings of one model are equal, by their records.

    told = compare(Records.from_text(text), records)
    print(told.sentence())      # "steps 1 and 2: losses, gradients and weights of 26 layers equal DeepSpeed's 1F1B bit for bit"

*Up to rounding* is a distance of at most sqrt(eps) / 4 of the first's norm: 9e-5 in fp32, 8e-3 in fp16 and
TF32, 2e-2 in bf16. eps is of the coarsest dtype that the model computes in: a sum in fp32 of bf16 results has
only bf16's digits. A gradient that would be zero without rounding (a key's bias before a softmax) has no
digits that could agree: it may differ by eps times the norm of all gradients. Adam turns it into a whole
step, so the weights of that tensor count as rounding from there on. It may also be just a part of a tensor
(one bias for query, key and value): where its gradient rounds, weights may differ by what the optimizer has
moved its faint elements, those of at most sqrt(eps) / 4 of their root mean square. Values that overflowed in
both agree. Integers must be equal.

Where 1F1B differs from itself beyond rounding when it runs a step once more (kernels that do not add in a
fixed order), twice that difference is added to the bound (in each step, as weights drift). Beyond sqrt(eps)
nothing is added: that is no matter of order, but a layer that keeps state, or that draws from a generator
which is not restored.

A layer that computes something different in its forward changes the gradients of all layers: the first layer
is named, which need not be the cause.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ostinato.errors import counted

from .records import BEFORE, KINDS, Difference, Fingerprint, Records, bound, same

STOCK = "DeepSpeed's 1F1B"


@dataclass(frozen=True)
class Comparison:
    """`differences`: in the order of steps, KINDS and layers; `kinds`: those that were compared; `empty`: layers
    without a tensor to compare."""

    steps: int
    layers: int
    kinds: list[str]
    differences: list[Difference]
    left_out: int
    unseen: str
    itself: Sequence[Difference] = ()  # between two runs of 1F1B, the largest first
    empty: Sequence[int] = ()
    # Layers with buffers that differ, as a recomputed forward writes to them.
    written_again: Sequence[int] = ()
    first: int = 1  # number of the first step that was compared
    # What a rank has read, and in which step, where the first start has read something else.
    other_data: str = ""
    overflowed: Sequence[int] = ()  # steps with gradients that are not finite

    @property
    def equal(self) -> bool:
        """Bit for bit. Only the norm of all gradients may round, as ranks add it up in their own order."""
        return all(d.kind == "norm" and d.rounding for d in self.differences)

    @property
    def within_rounding(self) -> bool:
        return all(d.rounding for d in self.differences)

    def sentence(self) -> str:
        notes = [f"gradients not compared: {self.unseen} does not show them"] * bool(self.unseen)
        notes += [f"not compared: {counted(self.left_out, 'tensor')} split over ranks"] * bool(self.left_out)
        if self.overflowed:
            steps = f"step{'s'[: len(self.overflowed) > 1]} {', '.join(map(str, self.overflowed))}"
            notes.append(f'gradients of {steps} are not finite, which shows little: let "check" go further')
        if self.empty:
            have, their = ("have", "their") if len(self.empty) > 1 else ("has", "its")
            notes.append(f"{_layers(self.empty)} {have} no parameter or buffer of {their} own")
        if self.written_again:
            again = _layers(self.written_again)
            notes.append(f"except buffers of {again}, to which a recomputed forward writes")
        itself = f"; {STOCK} does not repeat itself here: {_listed(self.itself)}" if self.itself else ""
        return " (".join([self._told() + itself, *["; ".join(notes) + ")"] * bool(notes)])

    def _told(self) -> str:
        if not self.steps:
            apart = self.first - 1
            when = f": the first start began {counted(abs(apart), 'step')} {'before' if apart > 0 else 'after'} this one"
            return f"no step was compared with {STOCK}{when * bool(apart)}"
        if not self.within_rounding:
            beyond = [d for d in self.differences if not d.rounding]
            number = beyond[0].step
            return f"step {number} differs from {STOCK} beyond rounding: {_listed([d for d in beyond if d.step == number])}"
        what = f"{self._span()}: {self._compared()} equal {STOCK}"
        if self.itself:
            first = "".join(f" (first in step {d.step}, {d})" for d in self.differences[:1])
            return f"{what} as far as it repeats itself{first}"
        if not self.equal:
            return f"{what} up to rounding: first in step {self.differences[0].step}, {self.differences[0]}"
        return f"{what} bit for bit{''.join(f'; {d} (rounding)' for d in self.differences[:1])}"

    def _span(self) -> str:
        last = self.first + self.steps - 1
        if self.steps == 1:
            return f"step {last}"
        return f"steps {self.first} {'and' if self.steps == 2 else 'to'} {last}"

    def _compared(self) -> str:
        words = [
            f"{kind}es" if kind == "loss" and self.steps > 1 else kind
            for kind in self.kinds
            if kind not in (BEFORE, "norm")
        ]
        return f"{' and '.join(filter(None, [', '.join(words[:-1]), words[-1]]))} of {self.layers} layer{'s'[: self.layers != 1]}"


def _layers(layers: Sequence[int]) -> str:
    return f"layer{'s'[: len(layers) > 1]} {', '.join(map(str, layers))}"


def _listed(differences: Sequence[Difference]) -> str:
    """The loss, if it differs, and the first tensor."""
    told = [d for d in differences if not d.name][:1] + [d for d in differences if d.name][:1]
    more = len({d.layer for d in differences if d.name}) - 1
    return ", ".join(map(str, told)) + (f", and {more} more layer{'s'[: more > 1]}" if more > 0 else "")


def compare(
    first: Records, second: Records, keys: Sequence[str | None] = (), written_again: Collection[int] = ()
) -> Comparison:
    """`first`: DeepSpeed's own; where the second began with a later step, the steps before that one are left out.
    `keys`: of the model's layers, by which some are tied: these share tensors. `written_again`: layers with buffers
    that may differ, as a recomputed forward writes to them. O(tensors)."""
    left_out, unseen = {*first.left_out, *second.left_out}, first.unseen or second.unseen
    layers = first.layers | second.layers
    compared = (name for name in sorted(layers, key=layers.__getitem__) if name.split("@")[0] not in left_out)
    ahead = second.began - first.began
    steps = list(zip(first.steps[ahead:], second.steps, strict=False)) if ahead >= 0 else []
    # Several where a script's train_batch() returns different numbers on its ranks.
    losses = sorted({"", *(name for step in steps for of in step for name in of.get("loss", ()))})
    names = [*losses, *(name for name in compared if name in second.layers or not _of_later_module(name))]
    kinds = [
        kind
        for kind in KINDS
        if any(of.get(kind) for step in steps for of in step) and not (unseen and kind == "gradients")
    ]
    eps = max(first.eps, second.eps)
    judge = _Judge(layers, eps, first)
    found = [
        judge.difference(
            number,
            kind,
            "" if name in losses else name,
            (a[kind].get(name), b[kind].get(name)),
            a["gradients"],
        )
        for number, (a, b) in enumerate(steps, ahead + 1)
        for kind in kinds
        if kind in a and kind in b and (kind != BEFORE or number == 1)
        for name in names
        if not same(a[kind].get(name), b[kind].get(name))
    ]
    again = sorted({d.layer for d in found if d.kind == "buffers"} & set(written_again))
    found = [d for d in found if d.kind != "buffers" or d.layer not in again]
    held = {layers[name] for name in names[len(losses) :]}
    held |= {at for at, key in enumerate(keys) if key is not None and keys.index(key) in held}
    empty = [] if left_out else [at for at in range(len(keys)) if at not in held]
    # Gradients that are only rounding come last.
    itself = sorted(first.itself, key=lambda d: (d.rounding and d.by > bound(eps), -d.by))
    other = _other_data(first.data[max(ahead, 0) :], second.data, ahead + 1)
    overflowed = [
        number
        for number, (a, _) in enumerate(steps, ahead + 1)
        if not all(math.isfinite(of.norm) for of in a["gradients"].values() if of)
    ]
    return Comparison(
        len(steps),
        len(held),
        kinds,
        found,
        len(left_out),
        unseen,
        itself,
        empty,
        again,
        ahead + 1,
        other,
        overflowed,
    )


def _other_data(first: Sequence[dict[str, str]], second: Sequence[dict[str, str]], begin: int) -> str:
    steps = enumerate(zip(first, second, strict=False), begin)
    differ = (
        f"the {name} in step {n}" for n, (a, b) in steps for name in a if b.get(name, a[name]) != a[name]
    )
    return next(differ, "")


def _of_later_module(name: str) -> bool:
    """A parameter of a tied module that is not tied is a separate tensor on each rank that has the module; a
    plan may run all its layers on the first rank's module."""
    return name.startswith("tied_modules.") and "@" in name


class _Judge:
    """Judges differences, in the order in which they arise."""

    def __init__(self, layers: dict[str, int], eps: float, first: Records):
        self._layers, self._eps, self._steps = layers, eps, first.steps
        beyond = [d for d in first.itself if not d.rounding]
        self._itself: dict[int, float] = {}  # by layer: how far two runs of 1F1B differ
        if max((d.by for d in beyond), default=0.0) <= math.sqrt(eps):
            self._itself = {
                layer: max(d.by for d in beyond if d.layer == layer) for layer in {d.layer for d in beyond}
            }
        # Largest share of faint elements, by the name of a tensor with a gradient that rounded.
        self._faint: dict[str, float] = {}

    def difference(
        self,
        step: int,
        kind: str,
        name: str,
        pair: tuple[Fingerprint | None, Fingerprint | None],
        gradients: dict[str, Fingerprint | None],
    ) -> Difference:
        a, b = pair
        layer = self._layers.get(name, -1)
        if a is None or b is None:
            words = f", which {STOCK} does not have" if a is None else f", which only {STOCK} has"
            return Difference(step, kind, name, layer, math.inf, False, words)
        if a.kind != b.kind:
            return Difference(step, kind, name, layer, math.inf, False, f", {b.kind} instead of {a.kind}")
        distance = math.dist(a.sketch, b.sketch)
        overflows = sum(not math.isfinite(norm) for norm in (a.norm, b.norm))
        close = overflows == 2 or (not overflows and distance <= self._bound(a) * a.norm)
        noise = (
            not overflows
            and kind == "gradients"
            and distance <= self._eps * math.hypot(*(p.norm for p in gradients.values() if p))
        )
        unsteady = (
            not overflows
            and self._bound(a) > 0
            and distance <= (self._bound(a) + self._unsteady(step, layer)) * a.norm
        )
        if kind == "gradients":  # one that is rounding alone is faint as a whole
            faint = 1.0 if (noise or unsteady) and not close else max(a.faint, b.faint)
            self._faint[name] = max(self._faint.get(name, 0.0), faint)
        close = close or (
            kind == "weights"
            and not overflows
            and distance <= self._bound(a) * a.norm + self._moved_by_rounding(step, name)
        )
        rounding = close or noise or unsteady
        return Difference(step, kind, name, layer, distance / a.norm if a.norm else math.inf, rounding)

    def _unsteady(self, step: int, layer: int) -> float:
        """Twice the difference between two runs of 1F1B, as both sides vary; the largest of all layers once
        weights have changed, and for the loss."""
        if step == 1 and layer >= 0:
            return 2 * self._itself.get(layer, 0.0)
        return 2 * step * max(self._itself.values(), default=0.0)

    def _moved_by_rounding(self, step: int, name: str) -> float:
        """How far a tensor's faint elements can drift apart under an optimizer with steps of a fixed length,
        whatever the gradient's size."""
        if not (faint := self._faint.get(name, 0.0)):
            return 0.0
        seen = [
            of.get(name)
            for of in (self._steps[0].get(BEFORE, {}), *(of["weights"] for of in self._steps[:step]))
        ]
        moves = (math.dist(a.sketch, b.sketch) for a, b in pairwise(seen) if a and b)
        return 2 * math.sqrt(faint) * sum(moves)

    def _bound(self, of: Fingerprint) -> float:
        return bound(self._eps) if "float" in of.kind or "complex" in of.kind else 0.0
