"""How devices exchange data: as threads that take turns in one process, and as parcels between processes."""
