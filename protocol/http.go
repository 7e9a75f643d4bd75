package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Methods of rpc.md 6.
const (
	MethodHTTPRequest   = "http/request"
	MethodHTTPBodyDelta = "http/request/bodyDelta" // notification, server to client
)

// HTTPRequestParams asks the server to make an HTTP request.
type HTTPRequestParams struct {
	Method         string       `json:"method"`
	URL            string       `json:"url"`
	Headers        []HTTPHeader `json:"headers,omitempty"`
	BodyBase64     []byte       `json:"bodyBase64,omitempty"`
	TimeoutMs      *uint64      `json:"timeoutMs,omitempty"`
	RedirectPolicy string       `json:"redirectPolicy,omitempty"` // follow (default) or stop
	RequestID      string       `json:"requestId"`
	StreamResponse bool         `json:"streamResponse"`
}

// HTTPHeader is one header line. ValueEnvVar names a variable of the server
// whose content is appended to Value.
type HTTPHeader struct {
	Name        string  `json:"name"`
	Value       string  `json:"value"`
	ValueEnvVar *string `json:"valueEnvVar,omitempty"`
}

// Redirect policies.
const (
	RedirectFollow = "follow"
	RedirectStop   = "stop"
)

// HoldsMessage says that the body may be as large as the message.
func (*HTTPRequestParams) HoldsMessage() {}

func (p *HTTPRequestParams) UnmarshalObject(o *Object) {
	p.Method = o.String("method")
	p.URL = o.String("url")
	if o.Present("headers") {
		o.Each("headers", func(o *strictjson.Object) {
			p.Headers = append(p.Headers, HTTPHeader{
				Name:        o.String("name"),
				Value:       o.String("value"),
				ValueEnvVar: o.OptString("valueEnvVar"),
			})
		})
	}
	p.BodyBase64 = o.OptBase64("bodyBase64")
	p.TimeoutMs = o.OptUint64("timeoutMs")
	p.RedirectPolicy = o.OneOfDefault("redirectPolicy", RedirectFollow, RedirectStop)
	p.RequestID = o.String("requestId")
	p.StreamResponse = o.BoolDefault("streamResponse", false)
}

// HTTPResponse answers http/request. A streamed response has an empty body; the
// real body follows in notifications.
type HTTPResponse struct {
	Status     int          `json:"status"`
	Headers    []HTTPHeader `json:"headers"`
	BodyBase64 []byte       `json:"bodyBase64"`
}

func (r *HTTPResponse) AppendJSON(dst []byte) []byte {
	e := encoder{dst: dst}
	r.encode(&e)
	return e.dst
}

func (r *HTTPResponse) encode(e *encoder) {
	e.dst = appendInt(e.dst, `{"status":`, int64(r.Status))
	e.dst = append(e.dst, `,"headers":[`...)
	for i, h := range r.Headers {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		e.dst = appendText(e.dst, `{"name":`, h.Name)
		e.dst = appendText(e.dst, `,"value":`, h.Value)
		e.dst = append(e.dst, '}')
	}
	e.dst = append(e.dst, `],"bodyBase64":`...)
	e.bytes(r.BodyBase64)
	e.dst = append(e.dst, '}')
}

// HTTPBodyDelta is one piece of a streamed body; Seq starts at 1. The last piece is
// empty and has Done set; its Error says why the body ended early, if it did.
type HTTPBodyDelta struct {
	RequestID   string  `json:"requestId"`
	Seq         uint64  `json:"seq"`
	DeltaBase64 []byte  `json:"deltaBase64"`
	Done        bool    `json:"done"`
	Error       *string `json:"error"`
}

func (d *HTTPBodyDelta) AppendJSON(dst []byte) []byte {
	dst = appendText(dst, `{"requestId":`, d.RequestID)
	dst = appendUint(dst, `,"seq":`, d.Seq)
	dst = appendBytes(dst, `,"deltaBase64":`, d.DeltaBase64)
	dst = appendBool(dst, `,"done":`, d.Done)
	if d.Error == nil {
		return append(dst, `,"error":null}`...)
	}
	return append(appendText(dst, `,"error":`, *d.Error), '}')
}

func (d *HTTPBodyDelta) UnmarshalObject(o *Object) {
	d.RequestID = o.String("requestId")
	d.Seq = o.Uint64("seq")
	d.DeltaBase64 = o.Base64("deltaBase64")
	d.Done = o.Bool("done")
	d.Error = o.OptString("error")
}
