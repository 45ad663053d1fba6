package lpc

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// codec encodes by protobuf's present API. gRPC's own does, too, but in releases (Debian's 1.33 over protobuf 1.3) that know only
// the old one and fail on messages of a present generator.
type codec struct{}

// encoded is a message that has been encoded already.
type encoded []byte

func (codec) Name() string { return "proto" }

func (codec) Marshal(v interface{}) ([]byte, error) {
	if bytes, ok := v.(encoded); ok {
		return bytes, nil
	}
	message, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return proto.Marshal(message)
}

func (codec) Unmarshal(data []byte, v interface{}) error {
	message, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	return proto.Unmarshal(data, message)
}
