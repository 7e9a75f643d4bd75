package resolve

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestUnder: a policy under a ceiling gives each path the lesser access of the two, also by links that
// lead out, below missing paths, at protected names and at private paths. To look the result up again
// changes nothing, and neither policy gets more if the two change places. A denied path is replaceable only for both.
func TestUnder(t *testing.T) {
	base := t.TempDir()
	var paths []string
	for _, dir := range []string{"/w/.git", "/w/a/.git", "/w/a/b", "/x/y", "/x/.aws"} {
		rig.Check(t, os.MkdirAll(base+dir, 0o700))
	}
	for name, target := range map[string]string{"/w/out": "../x", "/x/in": base + "/w/a", "/w/a/file": "", "/x/y/k.env": ""} {
		if target == "" {
			rig.Check(t, os.WriteFile(base+name, nil, 0o600))
		} else {
			rig.Check(t, os.Symlink(target, base+name))
		}
	}
	for _, name := range []string{"", "/w", "/w/.git", "/w/.aws", "/w/a", "/w/a/.git", "/w/a/b", "/w/a/file", "/w/out", "/w/new/deep", "/x", "/x/y", "/x/y/k.env", "/x/in", "/x/in/b", "/x/.aws"} {
		paths = append(paths, base+name)
	}
	all := append([]string{"/", "/usr", "/usr/bin", "/etc", "/proc", base + "/w/new", base + "/w/HEAD", base + "/x/y/k.env/z"}, paths...)
	random := rand.New(rand.NewPCG(35, 7))
	profile := func() (p sandbox.Profile, text string) {
		for range 1 + random.IntN(6) {
			e := sandbox.Entry{Place: sandbox.PlacePath, Path: paths[random.IntN(len(paths))], Access: sandbox.Access(1 + random.IntN(3)), SkipMissing: random.IntN(3) == 0}
			switch random.IntN(9) {
			case 0:
				e.Place, e.Access = sandbox.PlaceMinimal, sandbox.Read
			case 1:
				e.Place = sandbox.PlaceRoot
			case 2:
				e.Place, e.Access, e.Path = sandbox.PlaceGlob, sandbox.Denied, base+"/x/**/*.env"
			case 3:
				p.Private = []string{base + "/x/y"}
			case 4:
				p.TmpDir, e.Place = base+"/w/a", sandbox.PlaceTmpDir
			}
			e.Replaceable = e.Access == sandbox.Denied && e.Place == sandbox.PlacePath && random.IntN(2) == 0
			p.Entries = append(p.Entries, e)
			text += fmt.Sprintf("%+v\n", e)
		}
		p.Network = sandbox.Network(random.IntN(3))
		return p, text
	}
	rounds, compared := 100, 0
	if rig.Runs(rig.Nightly) {
		rounds = 20_000
	}
	for range rounds {
		first, firstText := profile()
		second, secondText := profile()
		asked, most := rig.Value(first.Compile()), rig.Value(second.Compile())
		a, errA := Policy(asked)
		if errA == nil {
			defer a.Close()
		}
		b, errB := Policy(most)
		if errB == nil {
			defer b.Close()
		}
		got, err := Under(most, asked, maxPins)
		if errA != nil || errB != nil {
			rig.Is(t, err != nil, true, "a policy that is refused alone")
			continue
		}
		rig.Must(t, err)
		again, err := Policy(got.Policy)
		rig.Must(t, err)
		rig.Must(t, again.CheckWithin(got.Policy))
		back := rig.Value(Under(asked, most, maxPins))
		for _, path := range all {
			want := min(a.Policy.Access(path), b.Policy.Access(path))
			temporary := want == sandbox.Write && (a.Policy.Confined && a.Policy.Temporary(path) || b.Policy.Confined && b.Policy.Temporary(path))
			for how, p := range map[string]*sandbox.Policy{"the lesser": got.Policy, "looked up again": again.Policy, "the other way round": back.Policy} {
				// What is denied may be hidden too: a link that one policy shows and the other denies, and what
				// lies in a private place.
				access := p.Access(path)
				if access == sandbox.Hidden && want == sandbox.Denied {
					access = want
				}
				if p.Replaceable(path) && access == sandbox.Denied != (want == sandbox.Denied && mayReplace(a.Policy, path) && mayReplace(b.Policy, path)) ||
					access != want || p.DeniesFile(path) != (a.Policy.DeniesFile(path) || b.Policy.DeniesFile(path)) || p.Confined && want == sandbox.Write && p.Temporary(path) != temporary {
					t.Fatalf("%s of\n%s and\n%s at %s: %v, want %v\n%s", how, firstText, secondText, path, p.Access(path), want, p)
				}
			}
			compared++
		}
		rig.Is(t, got.Fresh(), true, "fresh")
		rig.Is(t, got.Policy.FullRead, got.Policy.Confined && a.Policy.FullRead && b.Policy.FullRead || !a.Policy.Confined && b.Policy.FullRead || !b.Policy.Confined && a.Policy.FullRead, "FullRead of\n%s and\n%s", firstText, secondText)
		for _, r := range []*Resolved{got, again, back} {
			r.Close()
		}
	}
	t.Log(compared, "paths compared")
	rig.Is(t, compared > rounds*3, true, "enough pairs were not refused")
}

// TestUnderChanged: a link that is put into a place after the look-up is found.
func TestUnderChanged(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"/w/a", "/x"} {
		rig.Check(t, os.MkdirAll(base+dir, 0o700))
	}
	policy := rig.Value(asked(base, "read $/w", "write $/w/a").Compile())
	got := rig.Value(Under(policy, policy, maxPins))
	defer got.Close()
	rig.Check(t, os.Remove(base+"/w/a"))
	rig.Check(t, os.Symlink("../x", base+"/w/a"))
	rig.Is(t, got.Fresh(), false, "fresh")
	again := rig.Value(Policy(got.Policy))
	defer again.Close()
	rig.Says(t, again.CheckWithin(got.Policy), base+"/x is not within the operator's ceiling", "a link")
}

// TestUnderNetwork: the lesser network is that of both.
func TestUnderNetwork(t *testing.T) {
	asked := &sandbox.Policy{Confined: true, Network: sandbox.NetworkManaged, AllUnixSockets: true}
	rig.Is(t, intersect(asked, &sandbox.Policy{Confined: true, Network: sandbox.NetworkEnabled}).AllUnixSockets, false, "all UNIX sockets, and a ceiling about files")
	const no, host, proxy = sandbox.NetworkRestricted, sandbox.NetworkEnabled, sandbox.NetworkManaged
	for _, tt := range [][3]sandbox.Network{{no, no, no}, {no, host, no}, {no, proxy, no}, {host, host, host}, {host, proxy, proxy}, {proxy, proxy, proxy}} {
		for _, pair := range [][2]sandbox.Network{{tt[0], tt[1]}, {tt[1], tt[0]}} {
			p := intersect(&sandbox.Policy{Network: pair[0], AllUnixSockets: true, Transparent: true}, &sandbox.Policy{Network: pair[1]})
			rig.Same(t, fmt.Sprint(pair), sandbox.Policy{Network: tt[2], AllUnixSockets: tt[2] == proxy, Transparent: tt[2] == proxy}, *p)
		}
	}
}

// TestUnderNamed: under a ceiling a policy has the sockets and devices that both name, or one does not restrict.
func TestUnderNamed(t *testing.T) {
	free := sandbox.Policy{Network: sandbox.NetworkEnabled}
	named := func(devices string, sockets ...string) *sandbox.Policy {
		return &sandbox.Policy{Confined: true, Sockets: sockets, Devices: []string{devices}}
	}
	for _, tt := range []struct {
		asked, most *sandbox.Policy
		want        string
	}{
		{named("/dev/a", "/1", "/2"), named("/dev/a", "/2", "/3"), "[/2] [/dev/a]"},
		{named("/dev/a", "/1"), named("/dev/b", "/3"), "[] []"},
		{named("/dev/a", "/1"), &free, "[/1] [/dev/a]"},
		{&free, named("/dev/a", "/1"), "[/1] [/dev/a]"},
		{named("/dev/a", "/1"), &sandbox.Policy{}, "[] [/dev/a]"},
		{&sandbox.Policy{}, named("/dev/a", "/1"), "[] [/dev/a]"},
		{&sandbox.Policy{Confined: true, Network: sandbox.NetworkManaged, AllUnixSockets: true, Rules: []sandbox.Rule{{Path: "/1", Access: sandbox.Read}}},
			&sandbox.Policy{Confined: true, Network: sandbox.NetworkEnabled, Sockets: []string{"/1", "/2"}}, "[/1] []"},
	} {
		p := intersect(tt.asked, tt.most)
		rig.Is(t, fmt.Sprint(p.Sockets, p.Devices), tt.want, "%v under %v", tt.asked, tt.most)
		rig.Is(t, p.AllUnixSockets, false, "all sockets of %v under %v", tt.asked, tt.most)
	}
	r := &Resolved{Policy: named("/dev/a", "/1", "/2")}
	rig.Must(t, r.CheckWithin(named("/dev/a", "/1", "/2")))
	rig.Says(t, r.CheckWithin(named("/dev/a", "/1")), "/2 is not within the operator's ceiling", "a socket")
	rig.Says(t, r.CheckWithin(named("/dev/b", "/1", "/2")), "/dev/a is not within", "a device")
}
