#!/usr/bin/env bash
# The site: pages, docstrings and public headers, in build/docs/html. A warning is an error, also a
# reference to nothing, a page that no list of pages has, and a public name that is on no page. The
# docstrings are those of the package that is installed. Nothing is fetched.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

read_headers() {
  mkdir -p build/docs/doxygen && doxygen docs/doxygen/Doxyfile
}

# From scratch: what is not read again does not warn again.
build_site() {
  "$python" -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --fresh-env --quiet \
    --doctree-dir build/docs/doctrees docs build/docs/html
}

rm -rf build/docs
stage "read the headers (doxygen)" read_headers && stage "build the site (sphinx)" build_site || true
stage_summary "make docs: build/docs/html/index.html"
