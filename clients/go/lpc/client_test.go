package lpc

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"learnedprefixcache/lpcv1"
)

func init() { encoding.RegisterCodec(codec{}) } // for the server below

const mostBytes = 4096

// A sidecar that answers, but not on its first streams.
type sidecar struct {
	lpcv1.UnimplementedContinuationPredictorServer
	silent  int
	mutex   sync.Mutex
	streams int
}

func (s *sidecar) GetModelInfo(context.Context, *lpcv1.GetModelInfoRequest) (*lpcv1.GetModelInfoResponse, error) {
	return &lpcv1.GetModelInfoResponse{CreditLifetimesS: []float64{1, 100}, Limits: &lpcv1.Limits{MaxRequestBytes: mostBytes}}, nil
}

func (s *sidecar) PredictStream(stream lpcv1.ContinuationPredictor_PredictStreamServer) error {
	s.mutex.Lock()
	s.streams++
	silent := s.streams <= s.silent
	s.mutex.Unlock()
	for {
		question, err := stream.Recv()
		if err != nil {
			return err
		}
		if silent {
			continue
		}
		answer := &lpcv1.PredictStreamResponse{RequestId: question.RequestId}
		answer.Result = &lpcv1.PredictStreamResponse_Prediction{Prediction: &lpcv1.Prediction{CreditS: []float32{1, 1}}}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func served(t *testing.T, s *sidecar, silence time.Duration) *Client {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(mostBytes))
	lpcv1.RegisterContinuationPredictorServer(server, s)
	go server.Serve(listener)
	client := dial(listener.Addr().String(), "", silence, grpc.WithInsecure())
	t.Cleanup(func() {
		client.Close()
		server.Stop()
	})
	return client
}

// Asks until there is an answer.
func answered(t *testing.T, c *Client, id string) {
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if _, here, expected := c.Take(id); here {
			return
		} else if !expected {
			c.Ask(id, said("hello"))
		}
	}
	t.Fatal("no answer to " + id)
}

func said(prompt string) *lpcv1.Conversation {
	return &lpcv1.Conversation{Input: &lpcv1.Conversation_Prompt{Prompt: prompt}}
}

func TestASidecarThatFallsSilentIsLeft(t *testing.T) {
	s := &sidecar{silent: 1}
	answered(t, served(t, s, 200*time.Millisecond), "a")
	if s.streams != 2 {
		t.Fatal(s.streams)
	}
}

func TestWhatCannotBeSentEndsNoStream(t *testing.T) {
	s := &sidecar{}
	c := served(t, s, longestSilence)
	answered(t, c, "first")
	c.Ask("no text", said("\xff"))
	c.Ask("too long", said(strings.Repeat("x", 2*mostBytes)))
	answered(t, c, "second")
	if s.streams != 1 {
		t.Fatal("another stream was needed")
	}
	for _, id := range []string{"no text", "too long"} {
		if _, _, expected := c.Take(id); expected {
			t.Fatal(id + " is waited for")
		}
	}
}

func TestWhatNobodyComesBackForStopsNothing(t *testing.T) {
	b := newBook(100)
	now := time.Now()
	for n := 0; n < 1000; n++ {
		id := fmt.Sprint(n)
		b.ask(id, now)
		b.answer(id, Answer{}, n%3 != 0)
		if n%7 == 0 {
			b.ask("again", now)
		}
	}
	if len(b.lines) > 100 || b.order.Len() != len(b.lines) || len(b.fresh) > 100 {
		t.Fatal(len(b.lines), b.order.Len(), len(b.fresh))
	}
	if _, here, _ := b.take("998", now); !here {
		t.Fatal("the latest is forgotten")
	}
}

func TestWhatEndsWithoutAnAnswerIsWaitedForNoLongerThanAnAnswerIsWorth(t *testing.T) {
	s := &sidecar{silent: 9}
	c := served(t, s, longestSilence)
	e := NewEngine(c, 100, false)
	for until := time.Now().Add(20 * time.Second); !c.Connected() && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	for n := 0; n < 50; n++ {
		id := fmt.Sprint(n)
		e.Admitted(id, said("hello"), []string{id})
		e.Ended(id, id, []string{id}, true, float64(n))
	}
	if len(e.late) != 50 {
		t.Fatal(len(e.late))
	}
	e.Step()
	for _, of := range e.waiting {
		of.until = of.until.Add(-2 * Timeout)
	}
	e.Step()
	if len(e.late)+len(e.waiting)+len(c.book.lines) != 0 {
		t.Fatal(len(e.late), len(e.waiting), len(c.book.lines))
	}
}
