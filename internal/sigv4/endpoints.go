package sigv4

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/paths"
)

// The endpoints of containers and instances: plain HTTP to link-local addresses, which no router
// forwards.
const (
	containerBase = "http://169.254.170.2"
	instanceBase  = "http://169.254.169.254"
	instanceBase6 = "http://[fd00:ec2::254]"

	instanceToken  = "/latest/api/token"
	instanceRoles  = "/latest/meta-data/iam/security-credentials/"
	instanceRegion = "/latest/meta-data/placement/region"

	headerInstanceToken    = "X-Aws-Ec2-Metadata-Token"
	headerInstanceTokenTTL = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	instanceTokenTTL       = "21600"
)

// Bounds of one request to an endpoint. An existing endpoint answers immediately. If there is no
// endpoint, there may be no answer at all.
const (
	endpointTimeout = 2 * time.Second
	maxEndpoint     = 64 << 10 // bytes of an answer
	maxRole         = 256      // bytes of the name of a role
)

// containerHosts are the addresses, besides those of this machine, to which a request for the
// credentials of a container may go by plain HTTP. At any other address, anybody could answer.
var containerHosts = []string{"169.254.170.2", "169.254.170.23", "fd00:ec2::23"}

// endpoints asks the endpoints of the container and of the instance.
type endpoints struct {
	cfg       Config
	transport http.RoundTripper
}

func newEndpoints(cfg Config) *endpoints {
	e := &endpoints{cfg: cfg, transport: cfg.Transport}
	if e.transport == nil {
		e.transport = auth.NewTransport(nil, nil)
	}
	return e
}

// keys asks the endpoint of the container if there is one, otherwise that of the instance.
func (e *endpoints) keys(ctx context.Context) (Keys, error) {
	target, err := e.container()
	switch {
	case err != nil:
		return Keys{}, err
	case target != "":
		k, err := e.containerKeys(ctx, target)
		if err != nil {
			return Keys{}, fmt.Errorf("asking the container endpoint for AWS credentials: %w", err)
		}
		return k, nil
	}
	if e.instance() == "" {
		return Keys{}, ErrNoKeys
	}
	k, err := e.instanceKeys(ctx)
	if err != nil {
		return Keys{}, fmt.Errorf("%w (asking the instance endpoint: %w)", ErrNoKeys, err)
	}
	return k, nil
}

// container returns the URL of the container's credentials, or "" if there is none.
func (e *endpoints) container() (string, error) {
	if path := e.cfg.value(varRelativeURI); path != "" {
		if path[0] != '/' {
			return "", errors.New(varRelativeURI + " does not begin with /")
		}
		return containerBase + path, nil
	}
	full := e.cfg.value(varFullURI)
	if full == "" {
		return "", nil
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New(varFullURI + " is no http or https URL")
	}
	if u.Scheme == "http" && !allowed(u.Hostname()) {
		return "", errors.New(varFullURI + " is plain http to another host than this machine, or the container endpoints of ECS and EKS")
	}
	return full, nil
}

func allowed(host string) bool {
	if auth.IsLoopback(host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	for _, known := range containerHosts {
		if err == nil && addr == netip.MustParseAddr(known) {
			return true
		}
	}
	return false
}

// endpointCredentials is the answer of both endpoints about credentials.
type endpointCredentials struct {
	Code            string // only from the instance; Success means that there are credentials
	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string
	Token           string
	Expiration      time.Time
}

func (e *endpoints) containerKeys(ctx context.Context, target string) (Keys, error) {
	header := http.Header{}
	token := e.cfg.value(varToken)
	if path := e.cfg.value(varTokenFile); path != "" {
		text, err := paths.ReadRegular(path, maxToken) // read each time, because the token is short-lived
		if err != nil {
			return Keys{}, fmt.Errorf("%s: %w", varTokenFile, err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token != "" {
		if strings.ContainsFunc(token, func(c rune) bool { return c < ' ' || c > '~' }) {
			return Keys{}, errors.New("the authorization token of the container is not one line of printable ASCII")
		}
		header.Set(headerAuthorization, token)
	}
	text, err := e.ask(ctx, http.MethodGet, target, header)
	if err != nil {
		return Keys{}, err
	}
	return parseAnswer(text)
}

func parseAnswer(text []byte) (Keys, error) {
	defer clear(text)
	var a endpointCredentials
	if json.Unmarshal(text, &a) != nil { // the cause may quote the answer
		return Keys{}, errors.New("the answer is not the JSON object that was expected")
	}
	if a.Code != "" && a.Code != "Success" {
		return Keys{}, errors.New("the answer says that there are no credentials")
	}
	k := Keys{AccessKeyID: a.AccessKeyID, SecretAccessKey: a.SecretAccessKey, SessionToken: a.Token, Expires: a.Expiration}
	if !k.Expires.IsZero() && !time.Now().Before(k.Expires) {
		return Keys{}, errors.New("the credentials in the answer have expired")
	}
	return k, k.check("the answer")
}

// instance returns the base URL of the instance's endpoint, or "" if it must not be asked.
func (e *endpoints) instance() string {
	if strings.EqualFold(e.cfg.value("AWS_EC2_METADATA_DISABLED"), "true") {
		return ""
	}
	if base := e.cfg.value("AWS_EC2_METADATA_SERVICE_ENDPOINT"); base != "" {
		return strings.TrimRight(base, "/")
	}
	if strings.EqualFold(e.cfg.value("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"), "IPv6") {
		return instanceBase6
	}
	return instanceBase
}

func (e *endpoints) instanceKeys(ctx context.Context) (Keys, error) {
	session, err := e.session(ctx)
	if err != nil {
		return Keys{}, err
	}
	roles, err := e.ask(ctx, http.MethodGet, e.instance()+instanceRoles, session)
	if err != nil {
		return Keys{}, err
	}
	role, _, _ := strings.Cut(strings.TrimSpace(string(roles)), "\n")
	if role == "" || len(role) > maxRole || url.PathEscape(role) != role {
		return Keys{}, errors.New("the instance has no role, or one whose name is not valid")
	}
	text, err := e.ask(ctx, http.MethodGet, e.instance()+instanceRoles+role, session)
	if err != nil {
		return Keys{}, err
	}
	return parseAnswer(text)
}

// region asks the instance for its region. It returns "" if the region is unknown.
func (e *endpoints) region(ctx context.Context) string {
	if e.instance() == "" {
		return ""
	}
	session, err := e.session(ctx)
	if err != nil {
		return ""
	}
	text, err := e.ask(ctx, http.MethodGet, e.instance()+instanceRegion, session)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// session begins a session with the instance's endpoint, and returns the header for its requests.
// Each session gets a new token, because credentials are fetched only a few times a day.
func (e *endpoints) session(ctx context.Context) (http.Header, error) {
	token, err := e.ask(ctx, http.MethodPut, e.instance()+instanceToken, http.Header{headerInstanceTokenTTL: {instanceTokenTTL}})
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(string(token))
	if text == "" || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, errors.New("the token in the answer is not valid")
	}
	return http.Header{headerInstanceToken: {text}}, nil
}

// ask sends one request. Redirects are not followed.
func (e *endpoints) ask(ctx context.Context, method, target string, header http.Header) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, endpointTimeout, fmt.Errorf("no answer within %v", endpointTimeout))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, errors.New("its URL is not valid") // the cause quotes the URL
	}
	r.Header = header.Clone()
	resp, err := e.transport.RoundTrip(r)
	if err != nil {
		err, _ = auth.Lost(ctx, err)
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxEndpoint+1))
	switch {
	case err != nil:
		err, _ = auth.Lost(ctx, err)
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("answered with status %d", resp.StatusCode)
	case len(text) > maxEndpoint:
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxEndpoint)
	}
	return text, nil
}
