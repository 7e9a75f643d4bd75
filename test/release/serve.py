#!/usr/bin/env python3
"""serve.py FOLDER serves a folder on loopback, as what it is and as registries of packages, and prints its URL.

    URL/PATH         a file of the folder
    URL/cut/PATH     the first half of a file, after a header that promises all of it
    URL/npm/         a registry for npm, of the packages in npm/*.tgz of the folder
    URL/simple/      an index for pip, of the packages in pypi of the folder
"""

import base64
import hashlib
import html
import http.server
import io
import json
import pathlib
import re
import shutil
import sys
import tarfile
import urllib.parse


def packument(folder, name, url):
    """What npm asks of a package: its versions, each with its package.json and its file."""
    versions = {}
    for file in sorted((folder / "npm").glob("*.tgz")):
        data = file.read_bytes()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            manifest = json.load(archive.extractfile("package/package.json"))
        if manifest["name"] == name:
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
            dist = {"tarball": f"{url}/npm/-/{file.name}", "integrity": integrity, "shasum": hashlib.sha1(data).hexdigest()}
            versions[manifest["version"]] = manifest | {"dist": dist}
    return {"name": name, "dist-tags": {"latest": max(versions)}, "versions": versions} if versions else None


def normal(name):
    """A name of a project as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def page(folder, project):
    """The files of a project, as the links of a page."""
    links = []
    for file in sorted((folder / "pypi").iterdir()):
        name = re.split(r"-\d", file.name)[0]
        if normal(name) == project:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            links.append(f'<a href="/pypi/{urllib.parse.quote(file.name)}#sha256={digest}">{html.escape(file.name)}</a><br>')
    return f"<!DOCTYPE html><title>{project}</title>{''.join(links)}" if links else None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        folder, url = self.server.folder, self.server.url
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/npm/-/"):
            self.send(folder / "npm" / path.removeprefix("/npm/-/"))
        elif path.startswith("/npm/"):
            found = packument(folder, path.removeprefix("/npm/"), url)
            self.answer(found and json.dumps(found).encode(), "application/json")
        elif path.startswith("/simple/"):
            found = page(folder, path.removeprefix("/simple/").strip("/"))
            self.answer(found and found.encode(), "text/html")
        elif path.startswith("/cut/"):
            self.send(folder / path.removeprefix("/cut/"), cut=True)
        else:
            self.send(folder / path.lstrip("/"))

    def answer(self, body, kind):
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body or b"")

    def send(self, file, cut=False):
        if ".." in file.parts or not file.is_file():
            return self.answer(None, "text/plain")
        size = file.stat().st_size
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "HEAD":
            return None
        with file.open("rb") as source:
            if cut and file.name.endswith((".gz", ".xz")):
                self.wfile.write(source.read(size // 2))
                self.close_connection = True
            else:
                shutil.copyfileobj(source, self.wfile)
        return None

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.folder = pathlib.Path(sys.argv[1])
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    print(server.url, flush=True)
    server.serve_forever()


main()
