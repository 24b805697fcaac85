# SPDX-License-Identifier: Apache-2.0
"""Micro-batches: who reads them, in which order, and of which size.

`items` keeps a loader's item unchanged while the loader reads on; `batches` gives micro-batch i to a plan that
asks for micro-batches in its own order; `same_data` compares what the ranks have read with what 1F1B would have
given them. Where micro-batches differ in size, `sizes` measures the sizes, and `step_plans` searches a plan
for each step.
"""
