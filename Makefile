test: ; python3 scripts/venv.py pytest -n auto
lint: ; python3 scripts/venv.py ruff check . && python3 scripts/venv.py ruff format --check . && python3 scripts/venv.py pyright && python3 scripts/venv.py python scripts/dead_code.py
gelu: ; python3 scripts/venv.py hlo-run examples/gelu.hlo
.PHONY: test lint gelu
