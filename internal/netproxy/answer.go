package netproxy

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// words are the texts that tell the command why its request was refused: a code for the header
// X-Proxy-Error, and a message.
type words struct{ header, message string }

// refusals maps a reason to its words, whether the policy or a decider gave the reason. All other
// reasons get the words of refused.
var (
	refusals = map[string]words{
		rules.ReasonNotAllowed:        {"blocked-by-allowlist", "Domain not in allowlist."},
		rules.ReasonNotAllowedLocal:   {"blocked-by-allowlist", "Sandbox policy blocks local/private network addresses."},
		rules.ReasonDenied:            {"blocked-by-denylist", "Domain denied by the sandbox policy."},
		rules.ReasonMethodNotAllowed:  {"blocked-by-method-policy", "Method not allowed in limited mode."},
		rules.ReasonMITMRequired:      {"blocked-by-mitm-required", "MITM required for limited HTTPS."},
		rules.ReasonRequestDenied:     {"blocked-by-request-rule", "The sandbox policy denies this method and path."},
		rules.ReasonRequestNotAllowed: {"blocked-by-request-rule", "The sandbox policy allows other methods and paths of this host, but not these."},
		"mitm_hook_denied":            {"blocked-by-mitm-hook", "HTTPS request denied by MITM hook policy."},
		"proxy_disabled":              {"blocked-by-policy", "network proxy is disabled"},
	}
	refused = words{"blocked-by-policy", "Request blocked by network policy."}
)

func wordsOf(reason string) words {
	if w, ok := refusals[reason]; ok {
		return w
	}
	return refused
}

// An ownResponse is a response that the proxy itself writes.
type ownResponse struct {
	status string // status code and reason phrase
	kind   string // Content-Type, if there is a body
	header string // value of X-Proxy-Error; set only in a refusal
	body   []byte
}

const (
	plainText       = "text/plain"
	jsonText        = "application/json"
	upstreamFailure = "upstream failure"
)

// failure is the answer if a destination cannot be reached, or does not answer.
func failure() ownResponse {
	return ownResponse{status: "502 Bad Gateway", kind: plainText, body: []byte(upstreamFailure)}
}

// malformed is the answer to input that is not a valid request, so that the proxy cannot judge it.
func malformed(text string) ownResponse {
	return ownResponse{status: "400 Bad Request", kind: plainText, body: []byte(text)}
}

// refusedTunnel is the answer to a CONNECT that was refused or whose destination cannot be reached.
func refusedTunnel(r *refusal) ownResponse {
	if r.failed {
		return failure()
	}
	w := wordsOf(r.Reason)
	return ownResponse{"403 Forbidden", plainText, w.header, []byte(w.message)}
}

// refusedRequest is the answer to a plain request that was refused or whose destination cannot be
// reached.
func refusedRequest(q request, r *refusal) ownResponse {
	if r.failed {
		return failure()
	}
	w := wordsOf(r.Reason)
	return blocked(w, struct {
		Status   string       `json:"status"`
		Host     string       `json:"host"`
		Reason   string       `json:"reason"`
		Decision rules.Action `json:"decision"`
		Source   string       `json:"source"`
		Protocol string       `json:"protocol"`
		Port     uint16       `json:"port"`
		Message  string       `json:"message"`
	}{"blocked", q.Host, r.Reason, r.Decision, r.Source, q.Protocol, q.Port, w.message})
}

// refusedSocket is the answer to a request for a UNIX socket if limited mode forbids the method of
// the request.
func refusedSocket(q request) ownResponse {
	return blocked(wordsOf(rules.ReasonMethodNotAllowed), struct {
		Status string `json:"status"`
		Host   string `json:"host"`
		Reason string `json:"reason"`
	}{"blocked", q.Host, rules.ReasonMethodNotAllowed})
}

func blocked(w words, body any) ownResponse {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(body) // strings and a number can always be encoded
	return ownResponse{"403 Forbidden", jsonText, w.header, bytes.TrimSuffix(text.Bytes(), []byte("\n"))}
}

// append appends the encoded answer. The answer to a HEAD request has the length of the body, but
// no body.
func (a ownResponse) append(to []byte, method string, keep bool) []byte {
	to = append(to, "HTTP/1.1 "+a.status+"\r\n"...)
	if len(a.body) > 0 {
		to = append(to, "content-type: "+a.kind+"\r\n"...)
	}
	if a.header != "" {
		to = append(to, "x-proxy-error: "+a.header+"\r\n"...)
	}
	to = append(to, "content-length: "...)
	to = strconv.AppendInt(to, int64(len(a.body)), 10)
	if !keep {
		to = append(to, "\r\nconnection: close"...)
	}
	to = append(to, "\r\ndate: "...)
	to = appendDate(to)
	to = append(to, "\r\n\r\n"...)
	if method != "HEAD" {
		to = append(to, a.body...)
	}
	return to
}

func appendDate(to []byte) []byte {
	return time.Now().UTC().AppendFormat(to, "Mon, 02 Jan 2006 15:04:05 GMT")
}
