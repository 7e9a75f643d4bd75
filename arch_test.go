package execagent_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/execagent/execagent/"

// A rule says which packages of this module a package may import, and why no
// others. Whoever changes a row writes a record in docs/adr.
type rule struct {
	imports []string
	why     string
}

var rules = map[string]rule{
	"protocol":              {[]string{"protocol/strict", "internal/strictbase64"}, "the wire's types know nothing that runs"},
	"protocol/strict":       {[]string{"internal/strictbase64"}, "JSON, and not what it says"},
	"buffer":                {nil, "byte slices that are lent"},
	"internal/strictbase64": {nil, "bytes from text"},
	"internal/secretenv":    {[]string{"internal/procstat"}, "variables of the process"},
	"internal/build":        {nil, "a version is known by everybody and knows nobody"},
	"internal/pathwalk":     {nil, "a path is followed here, and judged elsewhere"},
	"internal/procstat":     {nil, "what the kernel tells; whose a process is, is known elsewhere"},
	"internal/regularfile":  {nil, "files are read; whose they may be is known elsewhere"},
	"internal/secretfile":   {[]string{"internal/pathwalk", "internal/userns"}, "modes and owners"},
	"internal/tlsconfig":    {[]string{"internal/regularfile"}, "suites, versions, and certificates that are renewed"},
	"rpc":                   {[]string{"buffer", "protocol", "protocol/strict"}, "the engine knows no methods, sockets or files"},
	"rpc/rpctest":           {[]string{"buffer", "rpc"}, "the contract of rpc.Conn knows only rpc"},
	"internal/pack":         {nil, "bytes that our own processes hand to each other; what they mean is not said here"},
	"internal/caps":         {nil, "capabilities are taken away here; what for is not said"},
	"internal/userns":       {nil, "ids and capabilities of a namespace, not what is built in it"},
	"internal/usernotify":   {nil, "calls that wait, and their answers; which answer is not decided here"},
	"internal/sockowner":    {[]string{"internal/userns"}, "whose a socket is, not what that is wanted for"},
	"internal/tomltext":     {nil, "how a text nests, not what its keys mean"},
	"internal/thread":       {nil, "what another process has, not why it is wanted"},
	"internal/cgroup":       {nil, "where this process is and what it may have, not what that is wanted for"},
	"internal/linger":       {[]string{"buffer"}, "a connection, not what was said on it"},
	"internal/lobby":        {nil, "connections, not what is said on them"},
	"internal/unixsocket":   {[]string{"internal/pathwalk", "internal/userns"}, "a socket with a path, and whose its ends are; not what is said there"},
	"transport":             {[]string{"buffer", "rpc", "internal/linger", "internal/lobby", "internal/strictbase64", "internal/tlsconfig", "internal/unixsocket"}, "a transport carries bytes; it knows nothing of processes, files or methods"},
	"procs":                 {[]string{"internal/cgroup", "internal/procstat"}, "processes know nothing of JSON or RPC"},
	"fsops":                 {[]string{"internal/inotify"}, "file operations know nothing of JSON or RPC"},
	"applypatch":            {[]string{"fsops", "internal/oserror"}, "a patch is a text, and files are those of an FS; whose they are is not said"},
	"internal/oserror":      {nil, "numbers and their texts"},
	"discovery/layout":      {[]string{"protocol", "protocol/strict"}, "where things are in a folder, whoever opens them and however"},
	"discovery":             {[]string{"discovery/describe", "discovery/layout", "fsops", "internal/pack", "protocol/strict"}, "skills and plugins are found on whatever file system; nobody is answered here"},
	"discovery/describe":    {[]string{"protocol/strict"}, "files are texts; whoever has read them, and from where, is not known"},
	"fswatch":               {[]string{"fsops", "internal/inotify"}, "changes are told as plain values, whoever asks for them"},
	"internal/inotify":      {nil, "events of the kernel, whoever asks for them"},
	"internal/backlog":      {[]string{"buffer"}, "bytes wait for an acknowledgement, whoever sends it"},
	"sockets":               {[]string{"internal/backlog"}, "connections know nothing of JSON or RPC, nor who may make them"},

	"sandbox":                          {[]string{"sandbox/internal/pathname", "internal/strictbase64"}, "a policy is a value; it knows neither requests nor the kernel that enforces it"},
	"sandbox/enforce":                  {[]string{"sandbox", "sandbox/internal/pathname"}, "rulesets and filters are put into force, whoever needs them"},
	"sandbox/calls":                    {[]string{"sandbox"}, "which calls a supervisor does, and not how"},
	"sandbox/enforce/internal/seccomp": {[]string{"sandbox", "sandbox/calls"}, "the tables of the filters, for the generator and the tests"},
	"sandbox/hold":                     {nil, "a name is held whatever policy asks for it"},
	"sandbox/internal/childtest":       {nil, "processes of tests; it knows nothing of what is tested in them"},
	"sandbox/internal/openat":          {nil, "a path is opened whatever for"},
	"sandbox/internal/pathname":        {nil, "a path is a text"},
	"sandbox/resolve":                  {[]string{"sandbox", "sandbox/hold", "sandbox/internal/openat", "sandbox/internal/pathname"}, "a policy is looked up, for whatever is done with it then"},
	"sandbox/view":                     {[]string{"sandbox", "sandbox/resolve", "sandbox/internal/openat", "sandbox/internal/pathname"}, "a view shows what a resolved policy says, to whomever"},

	"client/projection":                  {[]string{"client", "client/capability", "client/environment", "client/projection/declared", "client/projection/mcpserver", "client/projection/skills", "protocol"}, "what was found becomes what a step can use; how it was found is known below"},
	"client/projection/declared":         {[]string{"client/projection/mcpserver", "internal/tomltext", "protocol", "protocol/strict"}, "texts become declarations; nothing is started"},
	"client/projection/internal/fakemcp": {[]string{"internal/procstat"}, "a server for tests, whoever starts it"},
	"client/projection/mcpserver":        {[]string{"client", "protocol"}, "one server, whoever has declared it"},
	"client/projection/skills":           {[]string{"client", "client/capability", "discovery/describe", "protocol"}, "skills are listed and read, for whatever model"},

	"filecopy":       {nil, "files and streams; it knows neither agents nor clients"},
	"helper/builtin": {[]string{"filecopy"}, "which tools there are, and not what they do"},

	"helper":            {[]string{"helper/builtin", "helper/confine", "helper/files", "helper/hold", "helper/probe", "procs", "applypatch"}, "it opens the door to the hidden modes and does nothing behind it"},
	"helper/hold":       {[]string{"procs", "internal/pack"}, "a command is held back here; who lets it go is known elsewhere"},
	"helper/judge":      {[]string{"execpolicy", "execpolicy/packed", "execpolicy/rule", "internal/pack"}, "programs are decided about here; how they are found and watched is known elsewhere"},
	"execpolicy/packed": {[]string{"execpolicy", "execpolicy/rule", "internal/pack"}, "a policy is carried, and asked elsewhere"},
	"helper/gate":       {[]string{"internal/sockowner"}, "whose a connection is, is found out here; what the proxy does with it is not known"},
	"helper/confine": {[]string{"execpolicy", "execpolicy/packed", "helper/judge", "helper/gate", "sandbox", "sandbox/enforce", "sandbox/hold", "sandbox/resolve", "sandbox/view", "procs", "helper/supervise", "internal/caps", "internal/pack", "internal/thread", "internal/userns"},
		"what confines a command knows policies and how a process is staged, not requests, sessions or configuration"},
	"helper/supervise": {[]string{"helper/judge", "internal/thread", "helper/gate", "helper/supervise/execcheck", "helper/supervise/routes", "helper/supervise/signals", "helper/supervise/sockets", "helper/supervise/terminals", "sandbox", "sandbox/calls", "fsops", "internal/caps", "internal/thread", "internal/usernotify"},
		"a call is judged by the policy alone, whatever the command is and however it was started"},
	"helper/supervise/routes":    {nil, "where packets go; what follows from that is not decided here"},
	"helper/supervise/signals":   {[]string{"internal/thread", "internal/procstat"}, "signals are sent here; whose a process is, is known elsewhere"},
	"helper/supervise/sockets":   {[]string{"internal/procstat"}, "descriptors are kept and dropped here; what a socket may reach is not known"},
	"helper/supervise/terminals": {[]string{"internal/procstat"}, "a terminal is known here; who may open it is not said"},
	"helper/supervise/execcheck": {[]string{"internal/thread", "internal/usernotify"}, "an execve is watched here, and judged elsewhere"},
	"helper/files": {[]string{"sandbox", "sandbox/enforce", "sandbox/resolve", "discovery", "fsops", "internal/caps", "internal/pack"},
		"file requests know policies and files, not commands, sessions or configuration"},
	"helper/probe": {[]string{"sandbox", "sandbox/enforce", "internal/thread", "internal/userns", "internal/usernotify"},
		"a layer is tried by itself; what it is used for is not known here"},
	"helper/internal/helpertest": {nil, "waiting, and a TB for processes that are no tests"},

	"execpolicy":                {[]string{"execpolicy/rule", "execpolicy/rulefile", "execpolicy/script", "internal/regularfile"}, "a policy is asked about commands, and starts none"},
	"execpolicy/rule":           {nil, "rules are values; it reads neither files nor scripts"},
	"execpolicy/rulefile/quiet": {nil, "a library says nothing while it is initialized"},
	"execpolicy/rulefile":       {[]string{"execpolicy/rule", "execpolicy/rulefile/quiet"}, "rules are read here, and asked elsewhere"},
	"execpolicy/script":         {nil, "commands are found here, and judged elsewhere"},

	"agent/audit":        {[]string{"rpc"}, "lines of a log; what they are about is known elsewhere"},
	"netproxy/mask":      {[]string{"internal/strictbase64", "netproxy/rules"}, "texts are replaced here; what carries them is not known"},
	"netproxy/rules":     {nil, "names and addresses are judged here, and looked up and dialled elsewhere"},
	"netproxy/head":      {[]string{"buffer"}, "bytes are taken for messages here, and meant elsewhere"},
	"netproxy/intercept": {[]string{"netproxy/rules"}, "TLS and HTTP/2 are spoken here; what may go on, and what is rewritten, is said elsewhere"},
	"netproxy":           {[]string{"buffer", "netproxy/head", "netproxy/intercept", "netproxy/mask", "netproxy/rules"}, "it is handed who decides, and knows neither requests of a client nor sandboxes"},

	"hostenv":        {[]string{"internal/regularfile", "internal/tomltext"}, "what the host is like is told as plain values"},
	"httpclient":     {nil, "the HTTP client knows nothing of JSON-RPC"},
	"agent/approval": {[]string{"helper/judge", "execpolicy", "execpolicy/rule", "procs", "protocol"}, "whether a command may be started is told as an error of the wire; nothing is started"},
	"agent/metrics":  {[]string{"helper/confine", "protocol", "sandbox"}, "things are counted here that have happened elsewhere"},
	"agent/skills":   {[]string{"discovery", "discovery/describe", "fsops", "fswatch", "helper/files", "protocol"}, "what is found is put into words and remembered here; how, is known elsewhere"},
	"agent/snapshot": {[]string{"procs"}, "states of shells; whose they are, and under which sandbox, is known elsewhere"},
	"agent/profile":  {[]string{"protocol", "sandbox"}, "a sandbox is translated; nothing of this host is looked at"},
	"agent/denial":   {[]string{"procs"}, "a guess from what a process has printed"},
	"agent/egress":   {[]string{"helper/gate", "netproxy", "netproxy/intercept", "netproxy/mask", "netproxy/rules", "protocol"}, "what is asked of the network becomes a proxy; who asks, and what else a process has, is known elsewhere"},
	"agent/patching": {[]string{"applypatch", "protocol"}, "what a request asks for, not on which files, nor who asks"},
	"agent/answers":  {[]string{"fsops", "httpclient", "protocol"}, "memory is counted here; what is answered is not known"},
	"agent": {[]string{"helper/judge", "execpolicy/packed", "agent/answers", "helper/hold", "agent/approval", "agent/skills", "agent/snapshot", "discovery", "agent/audit", "agent/denial", "agent/egress", "agent/metrics", "agent/profile", "buffer", "protocol", "protocol/strict", "rpc", "procs", "execpolicy", "fsops", "fswatch", "hostenv", "httpclient", "helper/builtin", "helper/confine", "helper/files", "helper/gate", "helper/probe", "internal/inotify", "sandbox", "sandbox/hold", "sandbox/resolve", "sockets", "agent/patching", "applypatch", "internal/oserror"},

		"the agent takes an rpc.Listener and cannot tell transports apart"},
	"relay/frame":   {nil, "a frame is bytes"},
	"relay/noise":   {[]string{"registry/wire"}, "keys and records; it knows neither frames nor websockets"},
	"relay/relaypb": {nil, "generated"},
	"relay/socket":  {[]string{"buffer", "internal/linger", "internal/tlsconfig"}, "a websocket carries bytes; it knows neither frames nor streams"},
	"relay/api":     {[]string{"auth", "registry/wire"}, "a registry is called here, whatever its answers are for"},
	"relay/direct":  {[]string{"auth", "internal/tlsconfig", "registry/wire", "relay", "relay/api", "relay/socket", "rpc", "transport"}, "websockets are opened and handed on; what is said on them is not known here"},
	"relay": {[]string{"buffer", "registry/wire", "rpc", "auth", "internal/tlsconfig", "relay/api", "relay/frame", "relay/noise", "relay/socket"},
		"the relay carries messages; it knows neither the agent nor the registry's insides"},
	"auth":       {[]string{"internal/regularfile", "internal/strictbase64", "internal/tlsconfig"}, "credentials know nothing of what they are shown to"},
	"auth/sigv4": {[]string{"auth", "internal/regularfile"}, "a request is signed and a signature checked; who sends it, and who answers, is known elsewhere"},

	"registry": {[]string{"protocol/strict", "auth", "auth/sigv4", "internal/lobby", "registry/direct", "registry/limits", "registry/principal", "registry/rendezvous", "registry/store", "registry/ticket", "registry/wire"},
		"the registry answers requests; it knows neither frames nor how state is kept"},
	"registry/direct":    {[]string{"internal/linger", "registry/limits", "registry/principal", "registry/store", "registry/ticket", "registry/wire"}, "websockets are joined here; what is said on them is not read"},
	"registry/limits":    {[]string{"registry/principal", "relay/socket"}, "what is used up is counted here, wherever it is used"},
	"registry/principal": {[]string{"registry/ticket"}, "who somebody is and what they may is a value"},
	"registry/rendezvous": {[]string{"registry/limits", "registry/principal", "registry/rendezvous/notice", "registry/store", "registry/ticket", "registry/wire", "relay/frame", "relay/socket"},
		"the rendezvous passes frames on and cannot read them; it is given what it needs, and knows no server around it"},
	"registry/rendezvous/notice": {[]string{"relay/frame"}, "a notice is decoded here, and acted on elsewhere"},
	"registry/store": {[]string{"auth", "internal/strictbase64", "registry/principal", "registry/ticket", "registry/wire"},
		"the store knows keys, identities, registrations and presences, not who asks for them over which socket"},
	"registry/store/storetest": {[]string{"registry/store", "registry/wire"}, "stores for tests, as others have them"},
	"registry/ticket":          {[]string{"registry/wire", "internal/strictbase64"}, "what is signed is checked without asking anybody"},
	"registry/wire":            {[]string{"protocol/strict", "internal/strictbase64"}, "what is said over HTTP is decoded here, and meant elsewhere"},

	"client/internal/asked":  {[]string{"protocol", "rpc"}, "questions are answered by functions of the client's user"},
	"client/internal/duplex": {[]string{"client/internal/queue", "internal/backlog"}, "two directions are counted here, and carried elsewhere"},
	"cmd/agent/forwarding":   {[]string{"client"}, "connections are joined here, whichever agent the client has reached"},
	"client":                 {[]string{"client/internal/asked", "client/internal/duplex", "client/internal/queue", "protocol", "protocol/strict", "rpc", "transport"}, "the client knows how to dial a URL and to start a program; it knows neither agent nor relay"},
	"client/internal/queue":  {[]string{"buffer"}, "what waits for a consumer, whatever it is"},
	"client/remote":          {[]string{"client", "auth", "relay", "relay/direct", "relay/noise"}, "how a client reaches an executor through a registry, and nothing of what it does there"},
	"client/environment":     {[]string{"client", "internal/regularfile", "internal/tomltext", "protocol", "rpc"}, "environments know ids, files of configuration and clients; a program hands in its transports"},
	"client/capability":      {[]string{"client", "client/environment", "discovery/layout", "protocol", "protocol/strict"}, "what is selected and what was found there; what is made of it is known above"},
	"client/threadlog":       {[]string{"protocol/strict"}, "a log keeps what it is given; it knows neither clients nor what selections mean"},
	"cmd/agent": {[]string{"protocol", "rpc", "transport", "procs", "fsops", "hostenv", "httpclient", "agent", "agent/metrics", "cmd/agent/asking", "cmd/agent/confined", "cmd/agent/netask", "cmd/agent/netpolicy", "agent/profile", "client", "client/remote", "helper", "helper/confine", "helper/files", "helper/probe", "sandbox", "sandbox/hold", "sandbox/resolve", "sockets", "relay", "relay/noise", "registry/wire", "auth", "internal/cgroup", "internal/secretenv", "internal/secretfile", "internal/build", "internal/tlsconfig", "cmd/agent/bridge", "cmd/agent/sessions", "cmd/agent/console", "cmd/agent/contexts", "cmd/agent/doctor", "cmd/agent/executor", "cmd/agent/forwarding", "cmd/agent/files", "cmd/agent/habits", "cmd/agent/installed", "cmd/agent/plain", "cmd/agent/probes", "cmd/agent/rules", "cmd/agent/secure", "cmd/agent/settings", "cmd/agent/shares", "cmd/agent/target", "cmd/agent/transfer", "cmd/internal/commandline", "cmd/internal/completion", "cmd/internal/layers", "cmd/internal/manual", "cmd/internal/program", "applypatch"},
		"main wires everything and owns nothing"},
	"cmd/internal/commandline": {nil, "a line is compared with the grammar; what it does is not known"},
	"cmd/internal/completion":  {nil, "scripts are made of the grammar alone"},
	"cmd/internal/manual":      {nil, "pages are made of the grammar alone"},
	"cmd/internal/layers":      {[]string{"cmd/internal/commandline", "cmd/internal/program", "cmd/internal/tomlfile", "internal/secretfile"}, "values are found for whichever options; what these do is not known"},
	"cmd/internal/tomlfile":    {[]string{"internal/regularfile", "internal/tomltext"}, "a file is read and its lines are told; what its keys mean is known elsewhere"},
	"cmd/agent/settings":       {[]string{"cmd/agent/contexts", "cmd/agent/plain", "cmd/internal/commandline", "cmd/internal/layers"}, "what counts of what is said about options; the commands are cmd/agent's"},
	"cmd/agent/contexts":       {[]string{"cmd/internal/layers", "cmd/internal/program", "cmd/internal/tomlfile", "internal/secretfile"}, "contexts are read and changed here; nobody is connected to"},
	"cmd/agent/bridge":         {[]string{"rpc"}, "messages are passed on as they are, whoever opens the connections"},
	"cmd/agent/console":        {[]string{"client", "protocol", "cmd/agent/asking", "cmd/internal/program"}, "a console belongs to a command that somebody else has found or started"},
	"cmd/agent/asking":         {[]string{"execpolicy/rule", "protocol", "cmd/internal/program", "internal/procstat"}, "questions are put to a user here; what becomes of the answers is not known"},
	"cmd/agent/confined":       {[]string{"agent/approval", "helper/confine", "helper/judge", "helper/probe", "httpclient", "procs", "protocol", "sandbox", "sandbox/hold", "sandbox/resolve", "cmd/agent/asking", "cmd/agent/netask", "cmd/agent/netpolicy", "cmd/agent/rules", "cmd/internal/program"}, "what the user asks for comes as values, and no flag is known"},
	"cmd/agent/netask":         {[]string{"agent/egress", "helper/gate", "protocol", "cmd/agent/asking", "cmd/internal/program"}, "a user is asked here; what confines the command is not known"},
	"cmd/agent/netpolicy":      {[]string{"agent/egress", "cmd/internal/tomlfile", "internal/regularfile", "netproxy", "netproxy/rules", "protocol"}, "a file is read here; whose network it is about is not known"},
	"cmd/agent/plain":          {[]string{"cmd/internal/layers"}, "lines are read by the tags of whichever flags; what these are is cmd/agent's"},
	"cmd/agent/habits":         {[]string{"cmd/agent/plain", "cmd/internal/commandline"}, "words of other programs, whichever flags a command has"},
	"cmd/agent/rules":          {[]string{"helper/confine", "helper/hold", "execpolicy", "execpolicy/rule", "execpolicy/rulefile", "internal/secretfile"}, "rules are read and asked here, and nothing is done about the answers"},
	"cmd/agent/files":          {[]string{"applypatch", "fsops", "client", "protocol", "filecopy", "cmd/internal/program"}, "file requests, whoever has connected"},
	"cmd/agent/transfer":       {[]string{"client", "protocol", "filecopy", "cmd/agent/console", "cmd/internal/program"}, "a copy goes over a client that somebody else has connected"},
	"cmd/agent/installed":      {[]string{"protocol", "cmd/internal/program"}, "what is shown of skills, whoever asks for it"},
	"cmd/agent/sessions":       {[]string{"client", "protocol", "cmd/internal/program"}, "what is shown of sessions, whoever asks for it"},
	"cmd/internal/program":     {[]string{"internal/secretenv"}, "below every command"},
	"cmd/agent/target":         {[]string{"auth", "client", "client/remote", "relay", "registry/wire", "rpc", "transport", "httpclient", "internal/secretfile", "internal/tlsconfig", "cmd/agent/contexts", "cmd/internal/program"}, "an agent is reached here, and used elsewhere"},
	"cmd/agent/probes":         {[]string{"internal/lobby", "internal/unixsocket"}, "a probe is answered with what somebody else knows"},
	"cmd/agent/shares":         {[]string{"agent", "internal/cgroup", "relay", "sockets"}, "bytes are divided; who holds them is known elsewhere"},
	"cmd/agent/secure":         {[]string{"internal/secretfile", "internal/tlsconfig"}, "how a listener is secured, and nothing of what it serves"},
	"cmd/agent/executor":       {[]string{"agent/metrics", "auth", "auth/sigv4", "relay", "relay/direct", "relay/noise", "rpc", "registry/wire", "cmd/agent/probes", "cmd/agent/target", "cmd/internal/program", "internal/secretfile"}, "how an executor signs in and stays connected, and nothing of what it serves"},
	"cmd/agent/doctor":         {[]string{"helper/hold", "sandbox", "sandbox/resolve", "helper/confine", "helper/files", "helper/probe", "fsops", "procs"}, "what a host can do is found out from below, without serving anybody"},
	"cmd/registry":             {[]string{"internal/cgroup", "registry", "registry/limits", "registry/principal", "registry/store", "relay/frame", "internal/build", "internal/secretfile", "internal/strictbase64", "internal/tlsconfig", "internal/unixsocket", "cmd/internal/commandline", "cmd/internal/completion", "cmd/internal/layers", "cmd/internal/manual", "cmd/internal/program"}, "main wires everything and owns nothing"},
	"deploy":                   {nil, "tests of rules and dashboards"},
	"test/relaybench":          {[]string{"protocol", "client", "relay", "relay/noise", "auth", "test/rig"}, "a harness with a clock"},
	"test/sandboxbench":        {[]string{"internal/usernotify"}, "programs and a clock"},
	"test/rig":                 {[]string{"relay", "relay/noise", "auth", "internal/procstat"}, "programs are started and reached; what is tested with them is not known here"},
	"test/rig/nouserns":        {nil, "a program for developers; it knows nothing of what it launches"},
	"test/rawclient":           {[]string{"rpc"}, "messages and frames are passed on as they are; what they mean is the test's"},
	"test/conformance":         {nil, "tests of a real process"},
	"test/e2e":                 {nil, "tests of a real process"},
	"test/e2e/escape":          {nil, "what runs confined and tries to get out"},
	"test/kernels":             {nil, "tests of other kernels"},
	"test/kernels/guest":       {nil, "process 1 of a virtual machine; it knows programs alone"},
	"test/exectree":            {nil, "tests of real processes"},
	"test/hostile":             {nil, "tests of a real process"},
	"test/hostile/intruder":    {nil, "what runs confined and is not to be trusted"},
	"test/programs":            {nil, "tests of real processes; what is tested in them is not ours"},
	"test/interop":             {nil, "tests of a real process"},
}

// forTests are packages that only tests import.
var forTests = []string{"rpc/rpctest", "registry/store/storetest", "helper/internal/helpertest", "sandbox/internal/childtest", "test/rig", "test/rawclient", "client/projection/internal/fakemcp"}

// linux are the packages that compile only for Linux, because of their own code or
// of what they import.
var linux = []string{
	"cmd/agent/shares", "cmd/agent/settings", "cmd/agent/plain", "cmd/agent/habits", "cmd/internal/layers",
	"agent/skills", "agent/snapshot", "discovery", "cmd/agent/installed",
	"agent/denial", "agent/egress", "cmd/agent/asking", "cmd/agent/confined", "cmd/agent/netask", "cmd/agent/netpolicy", "agent", "agent/answers", "agent/approval", "agent/metrics", "cmd/agent", "cmd/agent/console", "cmd/agent/contexts", "cmd/agent/files", "cmd/agent/sessions", "cmd/agent/transfer", "filecopy", "helper/builtin", "cmd/agent/doctor", "cmd/agent/executor", "cmd/internal/program", "cmd/agent/target", "cmd/registry", "fsops", "fswatch", "helper", "helper/confine", "helper/files", "helper/gate", "helper/probe", "agent/patching", "applypatch",
	"helper/hold", "helper/judge", "execpolicy/packed", "cmd/agent/rules", "helper/supervise", "helper/supervise/execcheck", "helper/supervise/routes", "helper/supervise/signals", "helper/supervise/sockets", "helper/supervise/terminals", "internal/caps", "internal/inotify", "internal/pack", "internal/sockowner", "internal/thread", "internal/usernotify", "internal/userns", "procs", "sandbox/enforce",
	"sandbox/hold", "sandbox/internal/openat", "sandbox/resolve", "sandbox/view", "test/e2e/escape", "test/hostile/intruder", "test/kernels/guest", "test/relaybench", "test/rig", "test/rig/nouserns", "test/sandboxbench",
}

// testOnly are libraries that no product package may import.
var testOnly = []string{
	"testing", "golang.org/x/net/bpf", "golang.org/x/text/cases", "golang.org/x/net/dns/", "github.com/google/go-cmp/", "github.com/rogpeppe/go-internal/", "go.uber.org/goleak", "pgregory.net/rapid",
	"sigs.k8s.io/yaml", "github.com/prometheus/client_golang/prometheus/testutil", "github.com/prometheus/client_model/", "github.com/moby/profiles/", "github.com/opencontainers/runtime-spec/",
}

// rooms are libraries, each with the few packages that may import it: there it could
// be replaced.
var rooms = map[string][]string{
	"github.com/alecthomas/kong":                                {"cmd/agent", "cmd/internal/commandline", "cmd/internal/completion", "cmd/internal/layers", "cmd/internal/manual", "cmd/registry"},
	"github.com/gorilla/websocket":                              {"transport", "registry/direct", "relay/socket", "test/rawclient"},
	"github.com/aws/aws-sdk-go-v2/aws":                          {"auth/sigv4"},
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4":                {"auth/sigv4"},
	"github.com/flynn/noise":                                    {"relay/noise"},
	"github.com/nats-io/nats.go":                                {"registry/store", "registry/store/storetest"},
	"github.com/nats-io/nats.go/jetstream":                      {"registry/store", "registry/store/storetest"},
	"github.com/nats-io/nats-server/v2/server":                  {"registry/store", "registry/store/storetest"},
	"github.com/prometheus/client_golang/prometheus":            {"registry"},
	"github.com/prometheus/client_golang/prometheus/collectors": {"registry"},
	"github.com/prometheus/client_golang/prometheus/promhttp":   {"registry"},
	"github.com/prometheus/common/expfmt":                       {"cmd/registry"},
	"github.com/prometheus/common/model":                        {"cmd/registry"},
	"github.com/modelcontextprotocol/go-sdk/mcp":                {"client/projection", "client/projection/mcpserver"},
	"github.com/modelcontextprotocol/go-sdk/jsonrpc":            {"client/projection/mcpserver"},
	"go.yaml.in/yaml/v3":                                        {"discovery/describe"},
	"github.com/creack/pty":                                     {"procs", "cmd/internal/program", "test/e2e/escape"},
	"github.com/bmatcuk/doublestar/v4":                          {"sandbox"},
	"go.starlark.net/resolve":                                   {"execpolicy/rulefile"},
	"go.starlark.net/starlark":                                  {"execpolicy/rulefile"},
	"go.starlark.net/syntax":                                    {"execpolicy/rulefile"},
	"mvdan.cc/sh/v3/syntax":                                     {"execpolicy/script"},
	"golang.org/x/text/unicode/norm":                            {"execpolicy/rule"},
	"golang.org/x/net/idna":                                     {"netproxy/rules"},
	"github.com/landlock-lsm/go-landlock/landlock/syscall":      {"sandbox/enforce"},
	"kernel.org/pub/linux/libs/security/libcap/psx":             {"helper/files"},
}

// listed has what the tests need of a package that go list prints.
type listed struct {
	ImportPath                         string
	Imports                            []string
	Dir                                string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// TestArrows holds every import of product code against the tables above.
func TestArrows(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name+"/" == module {
			continue // this test's own package
		}
		rule, ok := rules[name]
		if !ok {
			t.Errorf("%s has no row in the table of arch_test.go: add one, with an ADR", name)
			continue
		}
		seen[name] = true
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, module); ok {
				if !slices.Contains(rule.imports, ours) {
					t.Errorf("%s must not import %s: %s", name, ours, rule.why)
				}
				continue
			}
			if rooms, ok := rooms[imported]; ok && !slices.Contains(rooms, name) {
				t.Errorf("%s must not import %s: it stays in %s", name, imported, strings.Join(rooms, " and "))
			}
			for _, library := range testOnly {
				if !slices.Contains(forTests, name) && (imported == library || strings.HasPrefix(imported, library)) {
					t.Errorf("%s must not import %s: it is for tests", name, imported)
				}
			}
		}
	}
	for name := range rules {
		// test/interop is mostly Python and shell. Without its Go files go list would
		// not list it.
		if !seen[name] && name != "test/interop" {
			t.Errorf("the table of arch_test.go has a row for %s, which is no package", name)
		}
	}
}

// list returns the packages of the module with the imports of their product code.
func list(t *testing.T) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Dir,GoFiles,TestGoFiles,XTestGoFiles", "./...").Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// notInAgent are libraries that the agent does not link: clients of it, or the registry, do.
var notInAgent = []string{"github.com/modelcontextprotocol/", "github.com/nats-io/", "github.com/prometheus/"}

// TestLinked: what only other programs need is not in the agent, whichever way it would come.
func TestLinked(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/agent").Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, module+"agent") {
		t.Fatal("go list has not told of the agent")
	}
	for _, name := range linked {
		for _, library := range notInAgent {
			if strings.HasPrefix(name, library) {
				t.Errorf("the agent links %s", name)
			}
		}
	}
}

// slowToFuzz is a package that takes minutes to build for fuzzing: go test -fuzz
// instruments a package with everything that it imports.
const slowToFuzz = "github.com/nats-io/nats-server/v2/server"

// TestFuzzTargets: no package with fuzz targets depends on slowToFuzz, so each
// target is built in seconds.
func TestFuzzTargets(t *testing.T) {
	t.Parallel()
	target := regexp.MustCompile(`(?m)^func Fuzz[A-Z]`)
	var packages []string
	for _, p := range list(t) {
		for _, file := range append(p.TestGoFiles, p.XTestGoFiles...) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if target.Match(text) {
				packages = append(packages, p.ImportPath)
				break
			}
		}
	}
	if len(packages) < 15 {
		t.Errorf("%d packages have fuzz targets", len(packages)) // too few: target no longer fits
	}
	for _, name := range packages {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(strings.Fields(string(out)), slowToFuzz) {
			t.Errorf("%s has fuzz targets and depends on %s: move what they test to a package of its own", name, slowToFuzz)
		}
	}
}
