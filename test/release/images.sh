#!/bin/sh
# images.sh DIST compares the images of a release with those of make image, looks at both architectures and at the SBOMs,
# runs the programs in them, and renders the chart. It needs root, podman, skopeo, jq and helm's library, which
# deploy/check has.
set -eu

dist=$(realpath "$1")
cd "$(git rev-parse --show-toplevel)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

failed() {
	echo "images.sh: $*" >&2
	exit 1
}
is() { [ "$1" = "$2" ] || failed "$3 is $2, want $1"; } # is WANT GOT WHAT
# A storage of its own, so that no image of the machine is used or left.
storage="--root $work/storage --runroot $work/run --storage-driver vfs"
podman() { command podman $storage "$@"; }
manifest() { skopeo inspect --raw "$@"; }

for program in agent registry; do
	archive=$(ls "$dist/execagent-$program"_*_oci.tar)
	version=$(basename "$archive" _oci.tar | sed 's/.*_//')
	from=oci-archive:$archive:$version

	# Both architectures, and two SBOMs of each whose subject it is.
	manifest "$from" >"$work/index"
	for arch in amd64 arm64; do
		digest=$(jq -r --arg arch $arch '.manifests[] | select(.platform.architecture == $arch) | .digest' "$work/index")
		skopeo --override-arch $arch inspect --config "$from" >"$work/config"
		is $arch "$(jq -r .architecture "$work/config")" "the architecture of $program"
		is layers "$(jq -r .rootfs.type "$work/config")" "the type of the file system of $program"
		is "$version" "$(jq -r '.config.Labels["org.opencontainers.image.version"]' "$work/config")" "the label of $program for $arch"
		mkdir -p "$work/layout" && tar -xf "$archive" -C "$work/layout"
		about=0
		for sbom in $(jq -r '.manifests[] | select(.platform.architecture == "unknown") | .digest' "$work/index"); do
			blob=$work/layout/blobs/$(echo "$sbom" | tr : /)
			[ "$(jq -r .subject.digest "$blob")" = "$digest" ] || continue
			about=$((about + 1))
			ending=$(jq -r 'if .artifactType == "application/spdx+json" then "spdx" else "cdx" end' "$blob")
			text=$work/layout/blobs/$(jq -r '.layers[0].digest' "$blob" | tr : /)
			cmp "$text" "$dist/${program}_${version}_linux_$arch.$ending.json" || failed "the SBOM of $program for $arch is another one"
		done
		is 2 $about "the number of SBOMs of $program for $arch"
		rm -rf "$work/layout"
	done

	# It is configured as the image that the Dockerfile makes.
	file=Dockerfile
	[ $program = agent ] || file=deploy/$program.Dockerfile
	skopeo copy -q "$from" "containers-storage:[vfs@$work/storage+$work/run]localhost/released-$program:latest"
	podman build -q --format docker -f $file -t built-$program . >/dev/null
	config='{User, Entrypoint, Cmd, ExposedPorts, Volumes, Env: ((.Env // []) | map(select(startswith("PATH=") | not))), Labels: (.Labels | del(.["org.opencontainers.image.version", "org.opencontainers.image.revision", "org.opencontainers.image.created", "io.buildah.version"]))}'
	for name in built released; do
		podman image inspect localhost/$name-$program | jq -S ".[0].Config | $config" >"$work/$name"
	done
	diff "$work/built" "$work/released" || failed "the released image of $program is configured otherwise than $file says"
	for name in built released; do
		container=$(podman create --no-healthcheck localhost/$name-$program)
		podman export -o "$work/$name.tar" "$container"
		tar -tvf "$work/$name.tar" --numeric-owner | awk '$6 ~ /^(agent|registry|data)/ { print $1, $2, $6 }' >"$work/$name"
		podman rm "$container" >/dev/null
	done
	diff "$work/built" "$work/released" || failed "the released image of $program has other files than $file says"
	# make containers runs the image of the Dockerfile; this one has the same configuration and files.
	mkdir "$work/files"
	tar -xf "$work/released.tar" -C "$work/files"
	is "$program $version" "$(chroot "$work/files" "/$program" version | head -1)" 'what the program in the image prints'
	rm -rf "$work/files"
done
echo 'images: both architectures, SBOMs, the configuration of the Dockerfiles; their programs run'

# helm reads the chart, alone and out of its artefact.
chart=$(ls "$dist"/execagent-chart-*.tgz)
artefact=$(ls "$dist"/execagent-chart_*_oci.tar)
version=$(basename "$artefact" _oci.tar | sed 's/.*_//')
manifest "oci-archive:$artefact:$version" >"$work/manifest"
is application/vnd.cncf.helm.config.v1+json "$(jq -r .config.mediaType "$work/manifest")" 'the configuration of the chart'
is "sha256:$(sha256sum <"$chart" | cut -d ' ' -f 1)" "$(jq -r '.layers[0].digest' "$work/manifest")" 'the layer of the chart'
(cd deploy/check && RELEASED_CHART=$chart go test -count=1 -run '^Test(WrongValues|Numbers|Schema|Notes)$' .) >"$work/said" 2>&1 || failed "the chart: $(cat "$work/said")"
is "version: $version" "$(tar -xOzf "$chart" execagent/Chart.yaml | grep ^version:)" 'the version of the chart'
tar -xOzf "$chart" execagent/values.yaml | grep -q 'repository: ghcr.io/execagent/registry' || failed 'the chart has images that no release publishes'
echo 'chart: read, rendered, the same in its artefact'
