#!/usr/bin/env python3
"""artefacts.py DIST [TEXT...] looks into every artefact of a release, also into what is packed in it.

It prints where one of the texts stands, such as a path of the building machine, and which archive or image is
larger than its bound. It exits with 1 if there is any.
"""

import gzip
import io
import json
import lzma
import pathlib
import struct
import subprocess
import sys
import tarfile
import zipfile

MAX_ARCHIVE = 8_000_000  # bytes; the same as maxArchive of tools/release
MAX_IMAGE = 20_000_000  # bytes of the configuration and the layers of one architecture


def unpacked(data):
    """The files that are packed in data, as pairs of name and contents. Their list is empty for what is no archive."""
    if data[:2] == b"\x1f\x8b":
        yield "(gzip)", gzip.decompress(data)
    elif data[:6] == b"\xfd7zXZ\0":
        yield "(xz)", lzma.decompress(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        yield "(zstd)", subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    elif data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)
    elif data[257:262] == b"ustar":
        # An apk is several archives in a row, which is one with empty blocks between.
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", ignore_zeros=True) as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, archive.extractfile(member).read()
    elif data[:8] == b"!<arch>\n":
        at = 8
        while at + 60 <= len(data):
            name, size = data[at : at + 16].decode().strip(), int(data[at + 48 : at + 58])
            yield name, data[at + 60 : at + 60 + size]
            at += 60 + size + size % 2
    elif data[:4] == b"\xed\xab\xee\xdb":
        yield "(payload)", data[payload(data) :]


def payload(rpm):
    """Where the payload of an rpm begins: after the lead, and two headers of which the first is padded."""
    at = 96
    for padded in (True, False):
        entries, size = struct.unpack(">II", rpm[at + 8 : at + 16])
        at += 16 + 16 * entries + size
        if padded:
            at += -at % 8
    return at


def find(name, data, texts):
    """The places in data, and in what is packed in it, where a text stands."""
    for text in texts:
        at = data.find(text)
        if at >= 0:
            yield f"{name}: {data[max(0, at - 40) : at + 80]!r}"
    for inner, contents in unpacked(data):
        yield from find(f"{name}: {inner}", contents, texts)


def images(layout):
    """The sizes of the images in a layout of OCI that is packed as tar, by architecture."""
    with tarfile.open(layout) as archive:

        def blob(descriptor):
            return json.load(archive.extractfile("blobs/" + descriptor["digest"].replace(":", "/")))

        pending = json.load(archive.extractfile("index.json"))["manifests"]
        while pending:
            descriptor = pending.pop()
            manifest = blob(descriptor)
            pending += manifest.get("manifests", [])
            if "layers" in manifest and "platform" in descriptor:
                size = manifest["config"]["size"] + sum(layer["size"] for layer in manifest["layers"])
                yield descriptor["platform"]["architecture"], size


def main():
    dist, texts = pathlib.Path(sys.argv[1]), [text.encode() for text in sys.argv[2:]]
    wrong = []
    files = sorted(path for path in dist.rglob("*") if path.is_file())
    if not files:
        sys.exit(f"artefacts.py: {dist} holds no files")
    for path in files:
        name = str(path.relative_to(dist))
        wrong += find(name, path.read_bytes(), texts)
        size = path.stat().st_size
        if name.endswith("_oci.tar"):
            for architecture, size in images(path):
                print(f"{size:>12,}  {name}, {architecture}")
                if size > MAX_IMAGE:
                    wrong.append(f"{name}: the image for {architecture} has {size} bytes, and the bound is {MAX_IMAGE}")
        elif path.parent == dist and name.endswith((".tar.gz", ".tar.xz", ".zip")):
            print(f"{size:>12,}  {name}")
            if size > MAX_ARCHIVE:
                wrong.append(f"{name} has {size} bytes, and the bound is {MAX_ARCHIVE}")
    if wrong:
        sys.exit("\n".join(wrong))


main()
