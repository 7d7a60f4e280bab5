"""Figures of rooflines and sweeps, drawn by matplotlib, which is loaded when the first one is."""
