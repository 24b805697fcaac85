# SPDX-License-Identifier: Apache-2.0
"""What is profiled: the layers of a model, or the operators of any module, one row after the other. Nothing
is measured here."""
