package lpc

import (
	"context"
	"fmt"
	"net"
	"reflect"
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

func curves(hazard float32) *lpcv1.ReuseCurves {
	hazards := make([]float32, len(Edges)-1)
	hazards[0] = hazard
	return &lpcv1.ReuseCurves{Epoch: "e", Curves: []*lpcv1.ReuseCurve{{Group: 1, Hazards: hazards}}}
}

// A sidecar that answers with group 1, but not on its first streams. Before each answer it sends curves, where it has some.
type sidecar struct {
	edges   []float64
	changed *lpcv1.ReuseCurves
	lpcv1.UnimplementedContinuationPredictorServer
	silent  int
	mutex   sync.Mutex
	streams int
}

func (s *sidecar) GetModelInfo(context.Context, *lpcv1.GetModelInfoRequest) (*lpcv1.GetModelInfoResponse, error) {
	return &lpcv1.GetModelInfoResponse{
		Limits: &lpcv1.Limits{MaxRequestBytes: mostBytes}, ReuseEdgesS: s.edges, ReuseCurves: curves(0.5),
	}, nil
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
		if s.changed != nil {
			if err := stream.Send(&lpcv1.PredictStreamResponse{
				Result: &lpcv1.PredictStreamResponse_ReuseCurves{ReuseCurves: s.changed},
			}); err != nil {
				return err
			}
		}
		answer := &lpcv1.PredictStreamResponse{RequestId: question.RequestId}
		answer.Result = &lpcv1.PredictStreamResponse_Prediction{Prediction: &lpcv1.Prediction{ReuseGroup: 1}}
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
func answered(t *testing.T, c *Client, id string) Answer {
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		c.mutex.Lock()
		asked := c.book.lines[id]
		here := asked != nil && asked.Value.(*line).answered
		c.mutex.Unlock()
		if here {
			answer, _ := c.Take(id)
			return answer
		}
		if asked == nil {
			c.Ask(id, said("hello"))
		}
	}
	t.Fatal("no answer to " + id)
	return Answer{}
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
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.book.lines) != 0 {
		t.Fatal("they are waited for")
	}
}

func TestAnAnswerHasTheValuesOfItsGroup(t *testing.T) {
	bad := curves(2)
	for _, of := range []struct {
		edges   []float64
		changed *lpcv1.ReuseCurves
		want    Table
	}{
		{Edges, nil, Values(curves(0.5).Curves[0].Hazards)},
		{Edges, curves(0.25), Values(curves(0.25).Curves[0].Hazards)},
		{Edges, bad, Values(curves(0.5).Curves[0].Hazards)},
		{Edges[1:], curves(0.25), nil},
	} {
		c := served(t, &sidecar{edges: of.edges, changed: of.changed}, longestSilence)
		if got := answered(t, c, "a").Table; !reflect.DeepEqual(got, of.want) {
			t.Fatal(of.changed, got)
		}
	}
}

func TestWhatNobodyComesBackForStopsNothing(t *testing.T) {
	b := newBook(100)
	now := time.Now()
	for n := 0; n < 1000; n++ {
		id := fmt.Sprint(n)
		b.ask(id, now)
		if n%3 == 0 {
			b.forget(id)
		} else {
			b.answer(id, Answer{})
		}
		if n%7 == 0 {
			b.ask("again", now)
		}
	}
	if len(b.lines) > 100 || b.order.Len() != len(b.lines) {
		t.Fatal(len(b.lines), b.order.Len())
	}
	if _, ok := b.take("998"); !ok {
		t.Fatal("the latest is forgotten")
	}
}
