#!/bin/sh
# publish.sh DIST publishes the images and the chart of a release as docs/dev/release.md says, and verifies, pulls and
# runs them as docs/install.md says. Both pages name ghcr.io, which is Debian's docker-registry here, in namespaces of
# the script's own: nothing leaves the machine. It needs root, cosign and helm on the PATH, curl, jq, openssl, podman and skopeo.
# The key that has signed the release is beside DIST.
set -eu

if [ "${1:-}" != --within ]; then
	exec unshare --net --mount --pid --fork --kill-child --mount-proc sh "$0" --within "$(realpath "$1")"
fi
dist=$2
root=$(git rev-parse --show-toplevel)
version=$(basename "$dist"/execagent-agent_*_oci.tar _oci.tar | sed 's/^execagent-agent_//')
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"

failed() {
	echo "publish.sh: $*" >&2
	[ ! -f said ] || sed 's/^/  /' said >&2
	exit 1
}

# --- ghcr.io

ip link set lo up
mount -t tmpfs tmpfs /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
echo '127.0.0.1 localhost ghcr.io' >hosts
mount --bind hosts /etc/hosts
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ghcr.io -addext subjectAltName=DNS:ghcr.io \
	-keyout tls.key -out tls.crt 2>/dev/null
export SSL_CERT_FILE="$work/tls.crt"
cat >registry.yml <<END
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $work/registry}}
http: {addr: '127.0.0.1:443', tls: {certificate: $work/tls.crt, key: $work/tls.key}}
END
docker-registry serve registry.yml >registry.log 2>&1 &
server=$!
until curl -fsS --cacert tls.crt https://ghcr.io/v2/ >/dev/null 2>said; do
	kill -0 $server 2>/dev/null || failed "docker-registry has ended: $(cat registry.log)"
	sleep 0.1
done

# --- what the pages say

# A storage and a configuration of the script's own, so that no image of the machine is used or left.
mkdir home storage run
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/storage"\nrunroot = "%s/run"\n' "$work" "$work" >storage.conf
printf '[containers]\nnetns = "none"\ncgroups = "disabled"\n[engine]\nlock_type = "file"\nevents_logger = "none"\ncgroup_manager = "cgroupfs"\n' >containers.conf
export HOME="$work/home" CONTAINERS_STORAGE_CONF="$work/storage.conf" CONTAINERS_CONF="$work/containers.conf" COSIGN_PASSWORD=
ln -s "$dist" dist
cp "$dist/../cosign.key" "$dist/cosign.pub" .

# blocks PAGE prints the blocks of a page that are about the registry.
blocks() {
	awk '/^```sh by=release$/ { code = 1; text = ""; next } /^```$/ && code { if (text ~ /ghcr[.]io/) printf "%s", text; code = 0 } code { text = text $0 "\n" }' "$root/$1" |
		sed "s|0\.1\.0|$version|g"
}
blocks docs/dev/release.md >publish
blocks docs/install.md >install
[ "$(grep -c '^publish execagent' publish)" = 3 ] || failed 'docs/dev/release.md does not publish three artefacts'
[ "$(grep -c '^cosign verify' install)" = 2 ] || failed 'docs/install.md does not verify two artefacts'
sh -eu publish >said 2>&1 || failed 'docs/dev/release.md fails'
sh -eu install >said 2>&1 || failed 'docs/install.md fails'
grep -q "^agent $version$" said || failed 'the image says another version'
cmp "execagent-$version.tgz" "$dist/execagent-chart-$version.tgz" || failed 'the chart that was pulled is another one'

# Both architectures and the SBOMs have come along. skopeo writes the index again, and nothing that it lists.
for image in agent registry; do
	skopeo inspect --raw "docker://ghcr.io/execagent/$image:$version" | jq -r '.manifests[].digest' >there
	skopeo inspect --raw "oci-archive:$dist/execagent-${image}_${version}_oci.tar:$version" | jq -r '.manifests[].digest' >here
	diff here there || failed "$image was changed on its way"
	[ "$(wc -l <there)" = 6 ] || failed "$image does not have two programs and four SBOMs"
	while read -r digest; do
		skopeo inspect --raw "docker://ghcr.io/execagent/$image@$digest" >/dev/null
	done <there
done

# --- what has to be refused

refuses() {
	what=$1
	shift
	if "$@" >said 2>&1; then failed "$what: it was accepted"; fi
}
mkdir other && (cd other && cosign generate-key-pair >/dev/null 2>&1)
refuses 'another key' cosign verify --key other/cosign.pub --insecure-ignore-tlog "ghcr.io/execagent/agent:$version"
skopeo copy --quiet "oci-archive:$dist/execagent-registry_${version}_oci.tar:$version" docker://ghcr.io/execagent/agent:other
refuses 'an image that was not signed' cosign verify --key cosign.pub --insecure-ignore-tlog ghcr.io/execagent/agent:other
echo 'publish: pushed, signed, verified, pulled and run; another key and an image without a signature are refused'
