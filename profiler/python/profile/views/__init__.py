# SPDX-License-Identifier: Apache-2.0
"""A profile for people: `table` in the terminal, `page` as HTML, `perfetto` as a trace. `timeline` has what
the page and the trace draw: what each rank runs and holds."""
