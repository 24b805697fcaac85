# SPDX-License-Identifier: Apache-2.0
"""What a run says and leaves: rank 0's lines before step 1 (`announce`), whether the plan is faster
(`speedup`), which devices are slow (`drift`), traces (`trace`) and memory (`step_memory`) on disk, and what ranks
do outside the executor (`outside`)."""
