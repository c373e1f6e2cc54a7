# shellcheck shell=bash
# The virtual environment of this checkout, made once and shared by the scripts beside this file. Source it; it gives
#   ROOT, PY     the checkout, and the Python of its .venv
#   say, die     a line to stderr; the same, then exit 1
#   need EXTRA   fastload with that extra is installed when this returns

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
VENV="$ROOT/.venv"
PY="$VENV/bin/python"

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

is_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

find_python() {
  local name
  if [[ -n "${PYTHON:-}" ]]; then
    is_311 "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11, the only version fastload is tested on"
    printf '%s\n' "$PYTHON"
    return
  fi
  # A name that is found may still fail (a version manager's shim), so each is asked for its version.
  for name in python3.11 python3; do
    if is_311 "$name"; then
      printf '%s\n' "$name"
      return
    fi
  done
  die "no Python 3.11 found as python3.11 or python3: install it, or name it with PYTHON=/path/to/python3.11"
}

make_venv() {
  local python
  if [[ -x "$PY" ]]; then
    is_311 "$PY" || die "$VENV does not hold a working Python 3.11: remove that folder and run this again"
    # Without pip, making it was interrupted; `venv` completes what is there.
    if "$PY" -m pip --version >/dev/null 2>&1; then
      return
    fi
  fi
  python=$(find_python)
  say "making $VENV with $("$python" --version)"
  "$python" -m venv "$VENV" >&2 || die "$python could not make $VENV (Debian, Ubuntu: apt-get install python3.11-venv)"
}

# What an installation depends on: pyproject.toml, the extension's sources, and where the checkout lies.
fingerprint() {
  "$PY" -c 'import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = [root / "pyproject.toml", *sorted(root.glob("fastload/native/[!_]*"))]
print(hashlib.sha256(sys.argv[1].encode() + b"".join(p.read_bytes() for p in files if p.is_file())).hexdigest())' "$ROOT"
}

# pip's lines as a single one that rewrites itself; nothing where stderr is not a terminal.
progress() {
  local line width
  if [[ ! -t 2 ]]; then
    cat >/dev/null
    return
  fi
  width=$(tput cols 2>/dev/null || echo 80)
  while IFS= read -r line; do
    printf '\r\033[K%.*s' "$((width - 1))" "$line" >&2
  done
  printf '\r\033[K' >&2
}

# The native extension needs a C++ compiler and libjpeg's headers. Debian and its kin have both; elsewhere, or without the right to
# install packages, fastload is installed without the extension and says so.
native_needs() {
  local run=()
  if printf '#include <cstdio>\n#include <jpeglib.h>\n' | c++ -x c++ -fsyntax-only - 2>/dev/null; then
    return
  fi
  if [[ $(id -u) -ne 0 ]]; then
    run=(sudo -n)
  fi
  if command -v apt-get >/dev/null && { [[ $(id -u) -eq 0 ]] || sudo -n true 2>/dev/null; }; then
    say "installing g++ and libjpeg62-turbo-dev (or libjpeg-dev) for the native extension"
    if { ${run[@]+"${run[@]}"} apt-get update && { ${run[@]+"${run[@]}"} apt-get install -y g++ libjpeg62-turbo-dev ||
      ${run[@]+"${run[@]}"} apt-get install -y g++ libjpeg-dev; }; } >"$VENV/apt.log" 2>&1; then
      return
    fi
  fi
  say "no C++ compiler or no libjpeg headers: installing without the native extension (about half as fast, the same pixels)"
}

need() {
  local extra=$1 stamp="$VENV/fastload-$1.stamp" log="$VENV/install.log" started=$SECONDS want
  make_venv
  want=$(fingerprint)
  if [[ -f "$stamp" && "$(<"$stamp")" == "$want" ]]; then
    return
  fi
  native_needs
  say "installing fastload with its [$extra] packages into $VENV (the first time takes minutes: torch is large)"
  if ! "$PY" -m pip install --disable-pip-version-check --editable "${ROOT}[$extra]" 2>&1 | tee "$log" | progress; then
    tail -n 15 "$log" >&2
    die "pip could not install fastload; all it said is in $log"
  fi
  printf '%s\n' "$want" >"$stamp"
  say "installed in $((SECONDS - started)) s"
}
