# SPDX-License-Identifier: Apache-2.0
"""The last import of the process that ranks are forked from: what is loaded stays out of their garbage collections."""

import gc

gc.collect()
gc.freeze()
