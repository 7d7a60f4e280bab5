"""Where other tools find gpu-profile: each module is loaded by its tool alone."""
