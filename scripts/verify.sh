#!/bin/sh
# scripts/verify.sh [RUN_DIR]: do the outputs of a run exist, are they sound, do they agree with each other?
here=$(dirname "$0")
for python in "${PYTHON:-}" "$here/../.venv/bin/python" python3; do
    if [ -n "$python" ] && command -v "$python" >/dev/null 2>&1; then
        exec "$python" "$here/verify.py" "$@"
    fi
done
echo "no python found" >&2
exit 2
