# SPDX-License-Identifier: Apache-2.0
"""A single step: fewer than a section may want to check."""

from common import data, done, initialize, made

engine, *_ = initialize(made())
done([engine.train_batch(data()).item()], engine)
