package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Methods of sockets (rpc.md 8.4), an addition to the reference.
const (
	MethodSocketOpen   = "socket/open"
	MethodSocketWrite  = "socket/write"
	MethodSocketAck    = "socket/ack"
	MethodSocketResume = "socket/resume"
	MethodSocketClose  = "socket/close"
	MethodSocketData   = "socket/data" // notification, server to client
)

// Bounds of sockets.
const (
	// maxSocketID is the most bytes of a socket's id.
	maxSocketID = 128
	// MaxSocketWindow is the most bytes of a socket that a server sends before the
	// client has acknowledged the first of them.
	MaxSocketWindow = 1 << 20
	// MaxSocketChunk is the most bytes in one socket/write.
	MaxSocketChunk = 1 << 20
)

// SocketOpenParams connects to an address on the server's side: tcp://HOST:PORT or
// unix:///PATH. The client chooses the id, which is unique among the sockets of a
// session. Sockets end with their session.
type SocketOpenParams struct {
	SocketID string   `json:"socketId"`
	Address  string   `json:"address"`
	Window   *uint64  `json:"window,omitempty"` // nil: MaxSocketWindow
	Sandbox  *Sandbox `json:"sandbox,omitempty"`
}

func (p *SocketOpenParams) UnmarshalObject(o *Object) {
	p.SocketID = socketID(o)
	p.Address = o.String("address")
	if p.Window = o.OptUint64("window"); p.Window != nil && (*p.Window == 0 || *p.Window > MaxSocketWindow) {
		o.Fail("window", "%d is not 1 to %d", *p.Window, MaxSocketWindow)
	}
	p.Sandbox = sandbox(o)
}

func socketID(o *strictjson.Object) string {
	id := o.String("socketId")
	if n := len(id); n == 0 || n > maxSocketID {
		o.Fail("socketId", "is %d bytes, must be 1 to %d", n, maxSocketID)
	}
	return id
}

// SocketData has bytes from the other end of a socket. Offset is how many bytes came
// before. EOF or Error ends the data.
type SocketData struct {
	SocketID string `json:"socketId"`
	Offset   uint64 `json:"offset"`
	Chunk    []byte `json:"chunk"`
	EOF      bool   `json:"eof,omitempty"`
	Error    string `json:"error,omitempty"`
}

// HoldsMessage says that Chunk lies in the message.
func (*SocketData) HoldsMessage() {}

func (d *SocketData) AppendJSON(dst []byte) []byte {
	dst = appendPiece(dst, d.SocketID, d.Offset, d.Chunk, d.EOF)
	if d.Error != "" {
		dst = appendText(dst, `,"error":`, d.Error)
	}
	return append(dst, '}')
}

// appendPiece appends bytes of a socket, without the brace at the end.
func appendPiece(dst []byte, id string, offset uint64, chunk []byte, eof bool) []byte {
	dst = appendText(dst, `{"socketId":`, id)
	dst = appendUint(dst, `,"offset":`, offset)
	dst = appendBytes(dst, `,"chunk":`, chunk)
	if eof {
		dst = append(dst, `,"eof":true`...)
	}
	return dst
}

func (d *SocketData) UnmarshalObject(o *Object) {
	d.SocketID = o.String("socketId")
	d.Offset = o.Uint64("offset")
	d.Chunk = o.Base64InPlace("chunk")
	d.EOF = o.OptBool("eof", false)
	if text := o.OptString("error"); text != nil {
		d.Error = *text
	}
}

// SocketWriteParams sends bytes to the other end of a socket. Offset is how many bytes were
// sent before; the server takes no byte a second time. EOF says that nothing follows. A
// decoded Chunk lies in the memory of the message.
type SocketWriteParams struct {
	SocketID string `json:"socketId"`
	Offset   uint64 `json:"offset"`
	Chunk    []byte `json:"chunk"`
	EOF      bool   `json:"eof,omitempty"`
}

// HoldsMessage says that Chunk lies in the message.
func (*SocketWriteParams) HoldsMessage() {}

func (p *SocketWriteParams) AppendJSON(dst []byte) []byte {
	return append(appendPiece(dst, p.SocketID, p.Offset, p.Chunk, p.EOF), '}')
}

func (p *SocketWriteParams) UnmarshalObject(o *Object) {
	p.SocketID = socketID(o)
	p.Offset = o.Uint64("offset")
	if p.Chunk = o.Base64InPlace("chunk"); len(p.Chunk) > MaxSocketChunk {
		o.Fail("chunk", "%d bytes are more than %d", len(p.Chunk), MaxSocketChunk)
	}
	p.EOF = o.OptBool("eof", false)
}

// SocketReceived says how many bytes of a socket one side has. As the answer to
// socket/write and socket/resume, it says how many bytes the server has passed on.
type SocketReceived struct {
	Received uint64 `json:"received"`
}

func (r *SocketReceived) AppendJSON(dst []byte) []byte {
	return append(appendUint(dst, `{"received":`, r.Received), '}')
}

// SocketReceivedParams tell the server how many bytes of a socket the client has: the params of
// socket/ack and socket/resume.
type SocketReceivedParams struct {
	SocketID string `json:"socketId"`
	Received uint64 `json:"received"`
}

func (p *SocketReceivedParams) UnmarshalObject(o *Object) {
	p.SocketID = socketID(o)
	p.Received = o.Uint64("received")
}

// SocketParams name a socket: the params of socket/close.
type SocketParams struct {
	SocketID string `json:"socketId"`
}

func (p *SocketParams) UnmarshalObject(o *Object) { p.SocketID = socketID(o) }
