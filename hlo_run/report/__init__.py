"""The page of `--report_html`."""
