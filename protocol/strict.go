package protocol

// DecodeStrict reads one JSON object with nothing after it, as a registry reads a
// request: by the rules of [Decode], so that no name is there twice, and with
// names that are spelled exactly.
func DecodeStrict(text []byte, v Unmarshaler) error {
	s := scanners.Get().(*scanner)
	defer s.recycle()
	*s = scanner{data: text, names: s.names[:0]}
	s.space()
	start := s.pos
	if err := s.value(); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	o, err := ParseObject(text[start:])
	if err != nil {
		return err
	}
	v.UnmarshalObject(o)
	if err := o.Err(); err != nil {
		return err
	}
	return nil
}
