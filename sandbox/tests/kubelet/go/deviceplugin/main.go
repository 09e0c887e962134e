// deviceplugin offers GPUs that are not there, by the kubelet's v1beta1 API, as NVIDIA's plugin offers real ones:
//
//	GPUS=4 deviceplugin
//
// A container that gets some finds which in NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource   = "nvidia.com/gpu"
	socketName = "nvidia-gpu.sock"
)

func main() {
	count, err := strconv.Atoi(os.Getenv("GPUS"))
	if err != nil {
		log.Fatalf("GPUS: %v", err)
	}
	if err := serve(&plugin{count: count}); err != nil {
		log.Fatal(err)
	}
	if err := register(); err != nil {
		log.Fatal(err)
	}
	log.Printf("Registered device plugin for '%s' with Kubelet", resource)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	<-asked
}

func serve(p *plugin) error {
	socket := filepath.Join(v1beta1.DevicePluginPath, socketName)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	go func() { log.Fatal(server.Serve(listener)) }()
	return nil
}

func register() error {
	connection, err := grpc.NewClient("unix://"+v1beta1.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	patience, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(connection).Register(patience, &v1beta1.RegisterRequest{
		Version:      v1beta1.Version,
		Endpoint:     socketName,
		ResourceName: resource,
	})
	return err
}

type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	count int
}

func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	devices := make([]*v1beta1.Device, p.count)
	for index := range devices {
		devices[index] = &v1beta1.Device{ID: fmt.Sprintf("GPU-%d", index), Health: v1beta1.Healthy}
	}
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	// The GPUs stay as they are for as long as the kubelet listens.
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, asked *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		ids := append([]string(nil), container.DevicesIds...)
		sort.Strings(ids)
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{
				"NVIDIA_VISIBLE_DEVICES": strings.Join(ids, ","),
				"CUDA_VISIBLE_DEVICES":   strings.ReplaceAll(strings.Join(ids, ","), "GPU-", ""),
			},
		})
	}
	return response, nil
}
