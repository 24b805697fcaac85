# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a pipeline must hold or give alike.

agreement = Agreement([0, 1], timeout_s=60)
agreement.check("plan", program.plan_sha256, "hold a different plan")    # PipelineError names the ranks that differ
"""

from collections.abc import Sequence

from ostinato.ranks.reports import Missing, exchanged

from .checks import PipelineError


class Agreement:
    """Between these global ranks. All of them must make the same calls, each within timeout_s of the first."""

    def __init__(self, ranks: Sequence[int], timeout_s: float):
        self._ranks, self._timeout_s = ranks, timeout_s

    def exchanged(self, what: str, mine: str, missing: str = "") -> list[str]:
        """The texts of all ranks, in their order. `missing`: what it means where a rank does not take part."""
        try:
            return exchanged(what, mine, self._ranks, self._timeout_s)
        except Missing as error:
            means = (
                missing
                or "every rank of the group must make the pipeline; if one has ended, its log says why"
            )
            raise PipelineError(f"{error}: {means}") from None

    def check(self, what: str, mine: str, differently: str, missing: str = "") -> None:
        """Raises PipelineError where a rank gives another text than rank 0."""
        held = self.exchanged(what, mine, missing)
        differing = [rank for rank, said in enumerate(held) if said != held[0]]
        if differing:
            theirs, first = (held[rank][:200] or "none" for rank in (differing[0], 0))
            raise PipelineError(f"ranks {differing} {differently} than rank 0: {theirs} against {first}")
