package frame

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/execagent/execagent/internal/relay/relaypb"
	"github.com/execagent/execagent/test/rig"
)

// wrongType reports whether a known field of b, or of a message in b, has another
// wire type than md says, or a group one with too large a number. The generated
// code takes such a field for an unknown one; the reference and we refuse the
// frame.
func wrongType(md protoreflect.MessageDescriptor, b []byte) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		value := b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, value); n < 0 {
			return false
		}
		b = value[n:]
		if typ == protowire.StartGroupType && largeNumber(value[:n]) {
			return true
		}
		fd := md.Fields().ByNumber(num)
		if fd == nil {
			continue
		}
		want := protowire.BytesType
		if fd.Kind() == protoreflect.Uint32Kind {
			want = protowire.VarintType
		}
		if typ != want {
			return true
		}
		if fd.Kind() == protoreflect.MessageKind {
			if inner, _ := protowire.ConsumeBytes(value); wrongType(fd.Message(), inner) {
				return true
			}
		}
	}
	return false
}

// largeNumber reports whether a field of a group has a number that no field may
// have.
func largeNumber(group []byte) bool {
	for len(group) > 0 {
		num, typ, n := protowire.ConsumeTag(group)
		if n < 0 || num > protowire.MaxValidNumber {
			return true
		}
		group = group[n:]
		if typ == protowire.EndGroupType {
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, group); n < 0 {
			return false
		}
		if typ == protowire.StartGroupType && largeNumber(group[:n]) {
			return true
		}
		group = group[n:]
	}
	return false
}

// meaning returns the frame of a message that the generated code has read, and
// whether remote.md section 5 calls it valid.
func meaning(pb *relaypb.RelayMessageFrame) (f Frame, valid bool) {
	f = Frame{StreamID: []byte(pb.GetStreamId()), Ack: pb.GetAck(), AckBits: pb.GetAckBits()}
	switch body := pb.GetBody().(type) {
	case *relaypb.RelayMessageFrame_Data:
		f.Body, f.Seq, f.Payload = Data, body.Data.GetSeq(), body.Data.GetPayload()
		valid = body.Data.GetSegmentIndex() == 0 && body.Data.GetSegmentCount() == 1 && len(f.Payload) > 0
	case *relaypb.RelayMessageFrame_AckFrame:
		f.Body, valid = Ack, true
	case *relaypb.RelayMessageFrame_Resume:
		f.Body, f.NextSeq, valid = Resume, body.Resume.GetNextSeq(), true
	case *relaypb.RelayMessageFrame_Reset_:
		f.Body, f.Reason = Reset, []byte(body.Reset_.GetReason())
		valid = len(f.Reason) > 0
	case *relaypb.RelayMessageFrame_Heartbeat:
		f.Body, valid = Heartbeat, true
	case *relaypb.RelayMessageFrame_Handshake:
		f.Body, f.Payload = Handshake, body.Handshake.GetPayload()
		valid = len(f.Payload) > 0
	}
	return f, valid && pb.GetVersion() == 1 && strings.TrimSpace(pb.GetStreamId()) != ""
}

// message returns f as a message of the generated code, the opposite of meaning.
func message(f *Frame) *relaypb.RelayMessageFrame {
	pb := &relaypb.RelayMessageFrame{Version: 1, StreamId: string(f.StreamID), Ack: f.Ack, AckBits: f.AckBits}
	switch f.Body {
	case Data:
		pb.Body = &relaypb.RelayMessageFrame_Data{Data: &relaypb.RelayData{Seq: f.Seq, SegmentCount: 1, Payload: f.Payload}}
	case Ack:
		pb.Body = &relaypb.RelayMessageFrame_AckFrame{AckFrame: &relaypb.RelayAck{}}
	case Resume:
		pb.Body = &relaypb.RelayMessageFrame_Resume{Resume: &relaypb.RelayResume{NextSeq: f.NextSeq}}
	case Reset:
		pb.Body = &relaypb.RelayMessageFrame_Reset_{Reset_: &relaypb.RelayReset{Reason: string(f.Reason)}}
	case Heartbeat:
		pb.Body = &relaypb.RelayMessageFrame_Heartbeat{Heartbeat: &relaypb.RelayHeartbeat{}}
	case Handshake:
		pb.Body = &relaypb.RelayMessageFrame_Handshake{Handshake: &relaypb.RelayHandshake{Payload: f.Payload}}
	}
	return pb
}

func same(a, b *Frame) bool {
	return bytes.Equal(a.StreamID, b.StreamID) && a.Ack == b.Ack && a.AckBits == b.AckBits && a.Body == b.Body &&
		a.Seq == b.Seq && a.NextSeq == b.NextSeq && bytes.Equal(a.Payload, b.Payload) && bytes.Equal(a.Reason, b.Reason)
}

// FuzzDecode: Decode accepts a message exactly if the generated code and remote.md
// 5 do, and both read the same from it.
func FuzzDecode(f *testing.F) {
	for _, message := range readVectors(f) {
		f.Add(message)
		f.Add(append(bytes.Clone(message), message...))
		f.Add(message[:len(message)-1])
		f.Add(append(bytes.Clone(message), 0x32, 0))                         // another body
		f.Add(append(bytes.Clone(message), 0x2a, 2, 0x18, 2))                // data of two segments, merged or not
		f.Add(append(bytes.Clone(message), 0x2a, 2, 0x20, 0))                // a payload that is a number
		f.Add(append(bytes.Clone(message), 0x8b, 1, 0x8c, 1))                // a group
		f.Add(append(bytes.Clone(message), 0x18, 0xff, 0xff, 3))             // ack
		f.Add(append(bytes.Clone(message), 0x80, 0x80, 0x80, 0x80, 0x10, 1)) // field 2^29, and in a group
		f.Add(append(bytes.Clone(message), 0x8b, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 0x8c, 1))
		f.Add(append(bytes.Clone(message), 0x12, 2, 0xc2, 0xa0)) // a blank stream id
	}
	descriptor := (&relaypb.RelayMessageFrame{}).ProtoReflect().Descriptor()
	f.Fuzz(func(t *testing.T, b []byte) {
		var got Frame
		err := Decode(b, &got)
		pb := &relaypb.RelayMessageFrame{}
		if other := proto.Unmarshal(b, pb); other != nil {
			rig.Is(t, err == nil, false, "%x is accepted, the generated code says %v", b, other)
			return
		}
		want, valid := meaning(pb)
		rig.Is(t, err == nil, valid && !wrongType(descriptor, b), "Decode takes %x", b)
		if err != nil {
			return
		}
		rig.Is(t, same(&got, &want), true, "%x means\n\t%+v, want\n\t%+v", b, got, want)
	})
}

// FuzzAppend: Append makes the bytes that the generated code makes, for invalid
// frames too, and they decode to the same frame.
func FuzzAppend(f *testing.F) {
	for body := range byte(8) {
		f.Add("stream-1", uint32(0), uint32(0), body, uint32(0), []byte("payload"))
		f.Add("stream-1", uint32(300), uint32(1<<31), body, uint32(1<<31), []byte{})
	}
	f.Fuzz(func(t *testing.T, id string, ack, ackBits uint32, body byte, seq uint32, payload []byte) {
		if !utf8.ValidString(id) || !utf8.Valid(payload) && Body(body) == Reset {
			t.Skip("the generated code encodes no such text")
		}
		in := Frame{StreamID: []byte(id), Ack: ack, AckBits: ackBits, Body: Body(body)}
		switch in.Body {
		case Data:
			in.Seq, in.Payload = seq, payload
		case Resume:
			in.NextSeq = seq
		case Reset:
			in.Reason = payload
		case Handshake:
			in.Payload = payload
		}
		got := in.Append([]byte("before"))[len("before"):]
		pb := message(&in)
		want := rig.Value(proto.MarshalOptions{Deterministic: true}.Marshal(pb))
		rig.Is(t, bytes.Equal(got, want), true, "%+v is encoded as\n\t%x, want\n\t%x", in, got, want)
		var back Frame
		_, valid := meaning(pb)
		rig.Is(t, Decode(got, &back) == nil, valid, "Decode takes %+v", in)
		rig.Is(t, !valid || same(&in, &back), true, "%+v comes back as %+v", in, back)
	})
}
