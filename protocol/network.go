package protocol

import (
	"fmt"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// The managed network (network.md 4): a question to the client, which answers it, and a
// notification.
const (
	MethodNetworkPolicyRequest  = "network/policyRequest"
	MethodNetworkPolicyDecision = "network/policyDecision"
)

// Bounds of a client's request for the proxy of one process.
const (
	maxNetworkPatterns  = 4096 // of domains, and of reviewDomains
	maxNetworkPattern   = 512  // bytes of each
	maxNetworkSockets   = 1024 // of unixSockets, and of allowUnixSockets
	maxNetworkPath      = 4096 // bytes of the path of each
	maxLoopbackPorts    = 1024
	maxNetworkAudit     = 1024 // bytes of a text for telemetry, and of the two ids
	maxProviders        = 64
	maxProviderName     = 256  // bytes, also of the names of variables and headers
	maxProviderTexts    = 64   // in each list of a provider
	maxProviderText     = 4096 // bytes of each
	maxPolicyReason     = 1024 // bytes of the reason of an answer; longer ones are malformed
	policyDecisionStamp = "2006-01-02T15:04:05.000Z"
)

// Values of ProxyParams.Mode and ProxyParams.Domains.
const (
	ProxyFull    = "full"
	ProxyLimited = "limited"

	domainNone  = "none"
	DomainAllow = "allow"
	DomainDeny  = "deny"
)

// NetworkProxy asks for a proxy for one process (network.md 2.1).
type NetworkProxy struct {
	Proxy ProxyParams `json:"proxy"`
	// AuditMetadata is for telemetry only.
	AuditMetadata map[string]string `json:"auditMetadata,omitempty"`
	// EnvironmentID goes into the placeholders of credentials.
	EnvironmentID *string `json:"environmentId,omitempty"`
	ExecutionID   *string `json:"executionId,omitempty"`
	// PolicyDecisionTimeoutMs makes the server ask the client about names that the
	// list does not decide, and bounds the wait, in milliseconds; nil: the client is
	// not asked.
	PolicyDecisionTimeoutMs *uint64 `json:"policyDecisionTimeoutMs,omitempty"`
}

// ProxyParams say which requests the proxy lets through (network.md 2.2).
type ProxyParams struct {
	Enabled                        bool              `json:"enabled"`
	EnableSocks5                   bool              `json:"enableSocks5"`
	TransparentTCP                 bool              `json:"transparentTcp,omitempty"` // needs a sandbox, and enforces the network
	EnableSocks5UDP                bool              `json:"enableSocks5Udp"`
	AllowUpstreamProxy             bool              `json:"allowUpstreamProxy"`
	DangerouslyAllowAllUnixSockets bool              `json:"dangerouslyAllowAllUnixSockets"`
	Mode                           string            `json:"mode"`
	Domains                        map[string]string `json:"domains,omitempty"`
	UnixSockets                    map[string]string `json:"unixSockets,omitempty"`
	AllowLocalBinding              bool              `json:"allowLocalBinding"`
	ReviewDomains                  []string          `json:"reviewDomains,omitempty"`
	CredentialMasking              bool              `json:"credentialMasking,omitempty"`
	// CredentialProviders are by name.
	CredentialProviders map[string]CredentialProvider `json:"credentialProviders,omitempty"`
}

// CredentialProvider has the variables that hold a credential, the patterns of its value,
// and the destinations to which it may go (network.md 8.2).
type CredentialProvider struct {
	Env              []string `json:"env,omitempty"`
	Patterns         []string `json:"patterns,omitempty"`
	URLPrefixes      []string `json:"url_prefixes,omitempty"`
	URLPrefixFromEnv *string  `json:"url_prefix_from_env,omitempty"`
	Auth             []string `json:"auth,omitempty"` // of bearer, token, basic, header
	Header           *string  `json:"header,omitempty"`
	Prefix           *string  `json:"prefix,omitempty"`
}

// ManagedNetwork is for the sandbox of another system. It is checked, but has no effect
// (network.md 2.3). TransparentTCP needs ProxyParams.TransparentTCP.
type ManagedNetwork struct {
	LoopbackPorts                  []uint16 `json:"loopbackPorts,omitempty"`
	AllowLocalBinding              bool     `json:"allowLocalBinding,omitempty"`
	AllowUnixSockets               []string `json:"allowUnixSockets,omitempty"`
	DangerouslyAllowAllUnixSockets bool     `json:"dangerouslyAllowAllUnixSockets,omitempty"`
	TransparentTCP                 bool     `json:"transparentTcp,omitempty"`
}

var (
	auditMembers = [...]string{
		"conversationId", "appVersion", "userAccountId", "authMode", "originator", "userEmail", "terminalType", "model", "slug",
	}
	providerMembers = [...]string{"env", "patterns", "url_prefixes", "url_prefix_from_env", "auth", "header", "prefix"}
	providerAuth    = [...]string{"bearer", "token", "basic", "header"}
)

func (n *NetworkProxy) UnmarshalObject(o *Object) {
	o.In("proxy", n.Proxy.unmarshal)
	if o.Present("auditMetadata") {
		o.In("auditMetadata", func(o *strictjson.Object) {
			for _, name := range auditMembers {
				if text := boundedOpt(o, name, maxNetworkAudit); text != nil {
					if n.AuditMetadata == nil {
						n.AuditMetadata = map[string]string{}
					}
					n.AuditMetadata[name] = *text
				}
			}
		})
	}
	n.EnvironmentID = boundedOpt(o, "environmentId", maxNetworkAudit)
	n.ExecutionID = boundedOpt(o, "executionId", maxNetworkAudit)
	n.PolicyDecisionTimeoutMs = o.OptUint64("policyDecisionTimeoutMs")
}

func (p *ProxyParams) unmarshal(o *strictjson.Object) {
	p.Enabled = o.Bool("enabled")
	p.EnableSocks5 = o.Bool("enableSocks5")
	p.TransparentTCP = o.BoolDefault("transparentTcp", false)
	p.EnableSocks5UDP = o.Bool("enableSocks5Udp")
	p.AllowUpstreamProxy = o.Bool("allowUpstreamProxy")
	p.DangerouslyAllowAllUnixSockets = o.Bool("dangerouslyAllowAllUnixSockets")
	p.Mode = o.OneOf("mode", ProxyLimited, ProxyFull)
	if o.Has("domains") {
		p.Domains = o.WordMap("domains", maxNetworkPatterns, domainNone, DomainAllow, DomainDeny)
		boundedKeys(o, "domains", p.Domains, maxNetworkPattern)
	}
	if o.Has("unixSockets") {
		p.UnixSockets = o.WordMap("unixSockets", maxNetworkSockets, DomainAllow, DomainDeny)
		boundedKeys(o, "unixSockets", p.UnixSockets, maxNetworkPath)
	}
	p.AllowLocalBinding = o.Bool("allowLocalBinding")
	p.ReviewDomains = boundedList(o, "reviewDomains", maxNetworkPatterns, maxNetworkPattern)
	p.CredentialMasking = o.BoolDefault("credentialMasking", false)
	if o.Present("credentialProviders") {
		p.CredentialProviders = map[string]CredentialProvider{}
		o.EachIn("credentialProviders", maxProviders, func(name string, o *strictjson.Object) {
			var c CredentialProvider
			c.unmarshal(o)
			p.CredentialProviders[name] = c
		})
		boundedKeys(o, "credentialProviders", p.CredentialProviders, maxProviderName)
	}
}

func (c *CredentialProvider) unmarshal(o *strictjson.Object) {
	o.Only(providerMembers[:]...)
	c.Env = boundedList(o, "env", maxProviderTexts, maxProviderName)
	c.Patterns = boundedList(o, "patterns", maxProviderTexts, maxProviderText)
	c.URLPrefixes = boundedList(o, "url_prefixes", maxProviderTexts, maxProviderText)
	c.URLPrefixFromEnv = boundedOpt(o, "url_prefix_from_env", maxProviderName)
	if o.Present("auth") {
		c.Auth = o.Words("auth", len(providerAuth), providerAuth[:]...)
	}
	c.Header = boundedOpt(o, "header", maxProviderName)
	c.Prefix = boundedOpt(o, "prefix", maxProviderText)
}

func (m *ManagedNetwork) UnmarshalObject(o *Object) {
	if o.Present("loopbackPorts") {
		m.LoopbackPorts = o.Uint16s("loopbackPorts", maxLoopbackPorts)
	}
	m.AllowLocalBinding = o.BoolDefault("allowLocalBinding", false)
	m.AllowUnixSockets = boundedList(o, "allowUnixSockets", maxNetworkSockets, maxNetworkPath)
	m.DangerouslyAllowAllUnixSockets = o.BoolDefault("dangerouslyAllowAllUnixSockets", false)
	m.TransparentTCP = o.BoolDefault("transparentTcp", false)
}

// boundedList reads a list that may be absent, of at most most texts of at most longest bytes.
func boundedList(o *strictjson.Object, name string, most, longest int) []string {
	if !o.Present(name) {
		return nil
	}
	list := o.Strings(name)
	if len(list) > most {
		o.Fail(name, "has %d members, at most %d", len(list), most)
	}
	for i, text := range list {
		if len(text) > longest {
			bounded(o, fmt.Sprintf("%s[%d]", name, i), text, longest)
		}
	}
	return list
}

// boundedOpt reads a text of at most longest bytes, nil when absent or null.
func boundedOpt(o *strictjson.Object, name string, longest int) *string {
	text := o.OptString(name)
	if text != nil {
		bounded(o, name, *text, longest)
	}
	return text
}

// boundedKeys refuses a map with a name of more than longest bytes.
func boundedKeys[V any](o *strictjson.Object, name string, values map[string]V, longest int) {
	for key := range values {
		bounded(o, name, key, longest)
	}
}

func bounded(o *strictjson.Object, name, text string, longest int) {
	if len(text) > longest {
		o.Fail(name, "%.32q is %d bytes, at most %d", text, len(text), longest)
	}
}

// PolicyRequestParams ask a client whether a process may reach a host (network.md 4.1).
type PolicyRequestParams struct {
	ProcessID string        `json:"processId"`
	Request   PolicyRequest `json:"request"`
}

// PolicyRequest is a destination that a process wants to reach. Host is a normalised host, not a
// URL.
type PolicyRequest struct {
	Protocol string `json:"protocol"` // http, https_connect, socks5_tcp or socks5_udp
	Host     string `json:"host"`
	Port     uint16 `json:"port"`
	// Method and Path are those of an HTTP request, if the start of the process had a request rule
	// (network.md 12). A Path that was cut ends in "...".
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
}

func (p *PolicyRequestParams) UnmarshalObject(o *Object) {
	p.ProcessID = o.String("processId")
	o.In("request", func(o *strictjson.Object) {
		p.Request.Protocol = o.String("protocol")
		p.Request.Host = o.String("host")
		p.Request.Port = port(o)
		p.Request.Method, p.Request.Path = textOr(o, "method"), textOr(o, "path")
	})
}

// textOr reads a text, "" when absent or null.
func textOr(o *strictjson.Object, name string) string {
	if text := o.OptString(name); text != nil {
		return *text
	}
	return ""
}

func port(o *strictjson.Object) uint16 {
	o.Require("port")
	n := o.OptUint16("port")
	if n == nil {
		o.Fail("port", "must be a number")
		return 0
	}
	return *n
}

// The answers of a client; all except PolicyAllow have a reason.
const (
	PolicyAllow = "allow"
	PolicyDeny  = "deny"
	PolicyAsk   = "ask" // refused, because somebody must be asked first
)

// PolicyAnswer answers network/policyRequest.
type PolicyAnswer struct {
	Decision PolicyChoice `json:"decision"`
}

// PolicyChoice is a PolicyAllow, PolicyDeny or PolicyAsk.
type PolicyChoice struct {
	Type   string  `json:"type"`
	Reason *string `json:"reason,omitempty"` // nil for PolicyAllow
}

// UnmarshalObject reads the answer. An answer whose reason is too long is malformed, and so
// refuses.
func (a *PolicyAnswer) UnmarshalObject(o *Object) {
	o.In("decision", func(o *strictjson.Object) {
		a.Decision.Type = o.OneOf("type", PolicyAllow, PolicyDeny, PolicyAsk)
		if a.Decision.Type == PolicyAllow {
			return
		}
		reason := o.String("reason")
		bounded(o, "reason", reason, maxPolicyReason)
		a.Decision.Reason = &reason
	})
}

// PolicyDecision reports to a client the outcome of a process's attempt to reach a host
// (network.md 4.2).
type PolicyDecision struct {
	ProcessID string `json:"processId"`
	Timestamp string `json:"timestamp"`
	Scope     string `json:"scope"`
	Decision  string `json:"decision"`
	Source    string `json:"source"`
	Reason    string `json:"reason"`
	Protocol  string `json:"protocol"`
	Host      string `json:"host"`
	Port      uint16 `json:"port"`
	// Method is the HTTP method, CONNECT for a tunnel; "" for SOCKS.
	Method string `json:"method,omitempty"`
	// Path is that of an HTTP request, as in PolicyRequest.
	Path string `json:"path,omitempty"`
	// Client is the process's end of its connection to the proxy.
	Client string `json:"client"`
	// PolicyOverride: the client allowed a destination that the list does not allow.
	PolicyOverride bool `json:"policyOverride"`
}

// Stamp sets Timestamp to t in the form of the wire.
func (d *PolicyDecision) Stamp(t time.Time) { d.Timestamp = t.UTC().Format(policyDecisionStamp) }

func (d *PolicyDecision) UnmarshalObject(o *Object) {
	d.ProcessID = o.String("processId")
	d.Timestamp = o.String("timestamp")
	d.Scope = o.String("scope")
	d.Decision = o.String("decision")
	d.Source = o.String("source")
	d.Reason = o.String("reason")
	d.Protocol = o.String("protocol")
	d.Host = o.String("host")
	d.Port = port(o)
	d.Method, d.Path = textOr(o, "method"), textOr(o, "path")
	d.Client = o.String("client")
	d.PolicyOverride = o.Bool("policyOverride")
}
