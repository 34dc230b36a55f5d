"""Layout propagation: derives layouts from other layouts."""
