# SPDX-License-Identifier: Apache-2.0
"""A profile for people: tables, a page, a trace."""
