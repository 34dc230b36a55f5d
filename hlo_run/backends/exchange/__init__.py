"""The exchange of data between devices: by generators that take turns in one process, and by parcels between processes."""
