"""Layouts that follow from layouts."""
