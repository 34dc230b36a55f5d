"""Several processes that run one module together: who started them, how they find each other, and what they send."""
