"""Stretches of time in which a source records and regions are collected: one, or one now and then."""
