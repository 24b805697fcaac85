# SPDX-License-Identifier: Apache-2.0
"""What all tests of Python share."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """Keeps what earlier modules have imported out of garbage collections, of which a profile makes many: they would
    visit 700,000 objects each time."""
    gc.collect()
    gc.freeze()
