package frame

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// Errors of [Decode]. Their texts are constant, so that an error costs no memory. This
// matters because any peer that can send frames can cause any number of errors.
var (
	errWire     = errors.New("decoding frame: not protobuf")
	errType     = errors.New("decoding frame: a field has another wire type")
	errText     = errors.New("decoding frame: a string is not UTF-8")
	errVersion  = errors.New("decoding frame: version is not 1")
	errStreamID = errors.New("decoding frame: stream_id is blank")
	errBody     = errors.New("decoding frame: there is no body")
	errSegment  = errors.New("decoding frame: data is not one whole segment")
	errPayload  = errors.New("decoding frame: payload is empty")
	errReason   = errors.New("decoding frame: reason is empty")
)

// Decode decodes message into f and checks it by remote.md section 5. It overwrites all
// fields of f. The slices of f alias message.
//
// It follows the rules of proto3. Fields may be in any order. The last of several values of
// a field counts. A further body is merged into the body before it if both are of the same
// kind, and replaces that body otherwise. Unknown fields are skipped. As in the
// reference, a known field of another wire type is an error.
func Decode(message []byte, f *Frame) error {
	*f = Frame{}
	var got, segmentIndex, segmentCount uint32 // got is the version
	for b := message; len(b) > 0; {
		num, typ, n, ok := consumeTag(b)
		if !ok {
			return errWire
		}
		b = b[n:]

		switch num {
		case numVersion, numAck, numAckBits:
			v, n, err := consumeUint32(b, typ)
			if err != nil {
				return err
			}
			b = b[n:]
			switch num {
			case numVersion:
				got = v
			case numAck:
				f.Ack = v
			case numAckBits:
				f.AckBits = v
			}

		case numStreamID, numTraceparent, numTracestate:
			v, n, err := consumeText(b, typ)
			if err != nil {
				return err
			}
			b = b[n:]
			if num == numStreamID {
				f.StreamID = v
			}

		case numData, numAckFrame, numResume, numReset, numHeartbeat, numHandshake:
			v, n, err := consumeBytes(b, typ)
			if err != nil {
				return err
			}
			b = b[n:]
			body := Body(num - numData + 1)
			if body != f.Body {
				*f = Frame{StreamID: f.StreamID, Ack: f.Ack, AckBits: f.AckBits, Body: body}
				segmentIndex, segmentCount = 0, 0
			}
			switch body {
			case Data:
				err = f.mergeData(v, &segmentIndex, &segmentCount)
			default:
				err = f.merge(v)
			}
			if err != nil {
				return err
			}

		default:
			n, err := skip(num, typ, b)
			if err != nil {
				return err
			}
			b = b[n:]
		}
	}

	switch {
	case got != version:
		return errVersion
	case len(bytes.TrimSpace(f.StreamID)) == 0:
		return errStreamID
	case f.Body == 0:
		return errBody
	case f.Body == Data && (segmentIndex != 0 || segmentCount != 1):
		return errSegment
	case (f.Body == Data || f.Body == Handshake) && len(f.Payload) == 0:
		return errPayload
	case f.Body == Reset && len(f.Reason) == 0:
		return errReason
	}
	return nil
}

// mergeData decodes a RelayData into f. Its fields replace the fields of an earlier RelayData.
func (f *Frame) mergeData(b []byte, segmentIndex, segmentCount *uint32) error {
	for len(b) > 0 {
		num, typ, n, ok := consumeTag(b)
		if !ok {
			return errWire
		}
		b = b[n:]
		var err error
		switch num {
		case numSeq:
			f.Seq, n, err = consumeUint32(b, typ)
		case numSegmentIndex:
			*segmentIndex, n, err = consumeUint32(b, typ)
		case numSegmentCount:
			*segmentCount, n, err = consumeUint32(b, typ)
		case numPayload:
			f.Payload, n, err = consumeBytes(b, typ)
		default:
			n, err = skip(num, typ, b)
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// merge decodes a body other than RelayData. Such a body has at most one field.
func (f *Frame) merge(b []byte) error {
	for len(b) > 0 {
		num, typ, n, ok := consumeTag(b)
		if !ok {
			return errWire
		}
		b = b[n:]
		var err error
		switch {
		case f.Body == Resume && num == numNextSeq:
			f.NextSeq, n, err = consumeUint32(b, typ)
		case f.Body == Reset && num == numReason:
			f.Reason, n, err = consumeText(b, typ)
		case f.Body == Handshake && num == numHandshakeMsg:
			f.Payload, n, err = consumeBytes(b, typ)
		default:
			n, err = skip(num, typ, b)
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// consumeUint32 reads a varint. From a varint with more than 32 bits it drops the
// upper bits, as every proto3 decoder does.
func consumeUint32(b []byte, typ wireType) (v uint32, n int, err error) {
	if typ != varintType {
		return 0, 0, errType
	}
	long, n, ok := consumeVarint(b)
	if !ok {
		return 0, 0, errWire
	}
	return uint32(long), n, nil
}

func consumeBytes(b []byte, typ wireType) (v []byte, n int, err error) {
	if typ != bytesType {
		return nil, 0, errType
	}
	v, n, ok := consumeLengthDelimited(b)
	if !ok {
		return nil, 0, errWire
	}
	return v, n, nil
}

func consumeText(b []byte, typ wireType) (v []byte, n int, err error) {
	v, n, err = consumeBytes(b, typ)
	if err == nil && !utf8.Valid(v) {
		return nil, 0, errText
	}
	return v, n, err
}

// skip returns the length of the value of an unknown field.
func skip(num number, typ wireType, b []byte) (n int, err error) {
	n, ok := sizeOfValue(num, typ, b, maxGroups)
	if !ok {
		return 0, errWire
	}
	return n, nil
}
