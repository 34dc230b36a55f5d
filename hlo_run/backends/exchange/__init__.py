"""How devices exchange data: as generators that take turns in one process, and as parcels between processes."""
