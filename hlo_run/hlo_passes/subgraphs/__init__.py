"""HLO subgraphs that several passes build."""
