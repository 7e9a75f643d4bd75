// Package frame encodes and decodes the protobuf frames on a relay's websocket,
// one frame in each binary message (remote.md section 5). The code is written by
// hand because every record needs a frame: it uses no reflection, allocates
// nothing and never copies payloads.
package frame

import "encoding/binary"

// MaxMessage is the largest size of one websocket message of a relay, in bytes
// (remote.md section 4).
const MaxMessage = 262144

// MaxDataHeader is the largest number of bytes that [DataHeader.Append] appends, without
// the bytes of the stream id.
const MaxDataHeader = 40

// version is the only version of frames.
const version = 1

// Body is the kind of a frame's body.
type Body uint8

// The bodies of a frame (remote.md section 5). The zero Body is none of them.
const (
	Data Body = iota + 1
	Ack
	Resume
	Reset
	Heartbeat
	Handshake
)

// Field numbers of RelayMessageFrame.
const (
	numVersion     number = 1
	numStreamID    number = 2
	numAck         number = 3
	numAckBits     number = 4
	numData        number = 5
	numAckFrame    number = 6
	numResume      number = 7
	numReset       number = 8
	numHeartbeat   number = 9
	numHandshake   number = 10
	numTraceparent number = 11
	numTracestate  number = 12
)

// Field numbers of the bodies.
const (
	numSeq          number = 1 // RelayData
	numSegmentIndex number = 2
	numSegmentCount number = 3
	numPayload      number = 4
	numNextSeq      number = 1 // RelayResume
	numReason       number = 1 // RelayReset
	numHandshakeMsg number = 1 // RelayHandshake
)

// A Frame is one message of a relay. Fields of another body than Body's are
// zero after [Decode] and ignored by [Frame.Append].
type Frame struct {
	StreamID []byte // UTF-8, not blank
	Ack      uint32 // remote.md 8.1; 0 with AckBits 0 acknowledges nothing, see Acknowledges
	AckBits  uint32
	Body     Body
	Seq      uint32 // Data
	NextSeq  uint32 // Resume
	Payload  []byte // Data, Handshake: not empty
	Reason   []byte // Reset: UTF-8, not empty
}

// WillAcknowledge is the AckBits of a Handshake frame whose sender will acknowledge
// records. (Before the handshake there are no records that AckBits could acknowledge.) So
// the other end knows from its first record on that it can keep records until they are
// acknowledged.
const WillAcknowledge = 1

// Acknowledges reports whether the frame acknowledges records or, in a Handshake, whether
// its sender will acknowledge records (remote.md 8.1). Sequence numbers start at 0, and
// proto3 leaves zeros out. So an ack of 0 without bits acknowledges record 0 in an Ack
// body, and nothing in any other body.
func (f *Frame) Acknowledges() bool {
	return f.Ack != 0 || f.AckBits != 0 || f.Body == Ack
}

// Append appends the frame as the reference encodes it: fields in order, zeros left
// out. It checks nothing, so it also encodes frames that are invalid by remote.md 5.
func (f *Frame) Append(dst []byte) []byte {
	if f.Body == Data {
		h := DataHeader{StreamID: f.StreamID, Ack: f.Ack, AckBits: f.AckBits, Seq: f.Seq, PayloadSize: len(f.Payload)}
		return append(h.Append(dst), f.Payload...)
	}
	dst = appendEnvelope(dst, f.StreamID, f.Ack, f.AckBits)
	switch f.Body {
	case Ack:
		dst = appendBody(dst, numAckFrame, 0)
	case Resume:
		dst = appendBody(dst, numResume, sizeUint32(numNextSeq, f.NextSeq))
		dst = appendUint32(dst, numNextSeq, f.NextSeq)
	case Reset:
		dst = appendBody(dst, numReset, sizeBytes(numReason, len(f.Reason)))
		dst = appendBytes(dst, numReason, f.Reason)
	case Heartbeat:
		dst = appendBody(dst, numHeartbeat, 0)
	case Handshake:
		dst = appendBody(dst, numHandshake, sizeBytes(numHandshakeMsg, len(f.Payload)))
		dst = appendBytes(dst, numHandshakeMsg, f.Payload)
	}
	return dst
}

// A DataHeader is a data frame without its payload. The fields are those of
// [Frame].
type DataHeader struct {
	StreamID     []byte
	Ack, AckBits uint32
	Seq          uint32
	PayloadSize  int // bytes
}

// Append appends the frame up to its payload. The caller then appends the payload, a sealed
// record of PayloadSize bytes.
func (h *DataHeader) Append(dst []byte) []byte {
	dst = appendEnvelope(dst, h.StreamID, h.Ack, h.AckBits)
	dst = appendBody(dst, numData,
		sizeUint32(numSeq, h.Seq)+sizeUint32(numSegmentCount, 1)+sizeBytes(numPayload, h.PayloadSize))
	dst = appendUint32(dst, numSeq, h.Seq)
	dst = appendUint32(dst, numSegmentCount, 1)
	if h.PayloadSize > 0 {
		dst = appendTag(dst, numPayload, bytesType)
		dst = binary.AppendUvarint(dst, uint64(h.PayloadSize))
	}
	return dst
}

// appendEnvelope appends the fields before the body, which every frame has.
func appendEnvelope(dst, streamID []byte, ack, ackBits uint32) []byte {
	dst = appendUint32(dst, numVersion, version)
	dst = appendBytes(dst, numStreamID, streamID)
	dst = appendUint32(dst, numAck, ack)
	return appendUint32(dst, numAckBits, ackBits)
}

// appendBody appends the tag and the length of a body. Unlike other fields, an empty
// body is not left out.
func appendBody(dst []byte, num number, size int) []byte {
	dst = appendTag(dst, num, bytesType)
	return binary.AppendUvarint(dst, uint64(size))
}

func appendUint32(dst []byte, num number, v uint32) []byte {
	if v == 0 {
		return dst
	}
	dst = appendTag(dst, num, varintType)
	return binary.AppendUvarint(dst, uint64(v))
}

func appendBytes(dst []byte, num number, v []byte) []byte {
	if len(v) == 0 {
		return dst
	}
	dst = appendTag(dst, num, bytesType)
	dst = binary.AppendUvarint(dst, uint64(len(v)))
	return append(dst, v...)
}

func sizeUint32(num number, v uint32) int {
	if v == 0 {
		return 0
	}
	return sizeTag(num) + sizeVarint(uint64(v))
}

func sizeBytes(num number, n int) int {
	if n == 0 {
		return 0
	}
	return sizeTag(num) + sizeVarint(uint64(n)) + n
}
