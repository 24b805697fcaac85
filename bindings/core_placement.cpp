// SPDX-License-Identifier: Apache-2.0
// Placements, profiles and devices for Python.

#include <algorithm>
#include <filesystem>
#include <utility>

#include "bindings/core/requests.h"
#include "bindings/core/shape_request.h"
#include "bindings/held.h"
#include "bindings/restriction_rows.h"
#include "search/files/file.h"
#include "search/profile/cluster_toml.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"

namespace py = pybind11;

namespace ostinato {

namespace {

HeldProfile held_profile(std::string text, const std::string& name) {
  Profile profile = parse_profile(text, name);
  return {std::move(text), std::move(profile)};
}

/// Profiles that the text names lie beside the file `name`.
HeldDevices held_devices(std::string text, const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(name).parent_path();
  PartitionOptions on = core::on_cluster(parse_cluster(text, name, &folder), "unlimited");
  return {std::move(text), "", std::move(on)};
}

}  // namespace

PlacementRef held_placement(std::string text, const std::string& name) {
  PlacementFile file = parse_placement(text, name);
  return std::make_shared<const HeldPlacement>(std::move(text), std::move(file));
}

void bind_placement(py::module_& m) {
  py::class_<HeldPlacement, std::shared_ptr<HeldPlacement>>(m, "Placement")
      .def_readonly("text", &HeldPlacement::text)
      .def_property_readonly("name", [](const HeldPlacement& p) { return p.file.placement.name; })
      .def_property_readonly("sha256", [](const HeldPlacement& p) { return p.file.sha256; })
      .def_property_readonly("devices",
                             [](const HeldPlacement& p) { return names_of(p.file.placement.devices); })
      .def_property_readonly("blocks",
                             [](const HeldPlacement& p) { return names_of(p.file.placement.blocks); })
      .def_property_readonly("times",
                             [](const HeldPlacement& p) {
                               std::vector<Nanoseconds> times;
                               for (const Block& block : p.file.placement.blocks) times.push_back(block.time);
                               return times;
                             })
      .def(py::pickle([](const HeldPlacement& p) { return py::make_tuple(p.text); },
                      [](const py::tuple& state) {
                        return std::const_pointer_cast<HeldPlacement>(
                            held_placement(state[0].cast<std::string>(), "pickle"));
                      }));
  m.def(
      "placement",
      [](std::string text, const std::string& name) { return held_placement(std::move(text), name); },
      py::arg("text"), py::arg("name"));
  m.def("placement_file",
        [](const std::string& path) { return held_placement(read_file(path, kMaxPlacementBytes), path); });
  m.def(
      "shape",
      [](const std::string& shape, int devices, int chunks, int layers, bool inference,
         const Settings& settings) {
        core::ShapeRequest request;
        request.shape = shape;
        request.devices = devices;
        request.chunks = chunks;
        request.layers = layers;
        request.inference = inference;
        request.time_unit = "ns";  // of numbers without unit
        request.memory_unit = "B";
        const std::map<std::string, std::string*> places = {{"forward", &request.forward},
                                                            {"backward", &request.backward},
                                                            {"weight", &request.weight},
                                                            {"shard_forward", &request.shard_forward},
                                                            {"shard_backward", &request.shard_backward},
                                                            {"memory", &request.memory},
                                                            {"shard_memory", &request.shard_memory},
                                                            {"offload", &request.offload},
                                                            {"workspace", &request.workspace},
                                                            {"static", &request.static_memory},
                                                            {"capacity", &request.capacity},
                                                            {"latency", &request.latency},
                                                            {"bandwidth", &request.bandwidth},
                                                            {"bytes", &request.bytes}};
        for (const auto& [key, value] : settings) *places.at(key) = value;
        return held_placement(format_placement(core::shape_of(request)), shape);
      },
      py::arg("shape"), py::arg("devices"), py::arg("chunks"), py::arg("layers"), py::arg("inference"),
      py::arg("settings"));
}

void bind_profile(py::module_& m) {
  py::class_<HeldProfile>(m, "Profile")
      .def_readonly("text", &HeldProfile::text)
      .def_property_readonly("model", [](const HeldProfile& p) { return p.profile.model; })
      .def_property_readonly("noise", [](const HeldProfile& p) { return noise_of(p.profile); })
      .def_property_readonly("layers", [](const HeldProfile& p) { return names_of(p.profile.layers); })
      .def(py::pickle(
          [](const HeldProfile& p) { return py::make_tuple(p.text); },
          [](const py::tuple& state) { return held_profile(state[0].cast<std::string>(), "pickle"); }));
  m.def("restricted", [](const HeldProfile& p, const std::vector<RestrictionRow>& rows) {
    Profile profile = p.profile;
    for (const Restriction& one : from_rows(rows))
      if (std::ranges::find(profile.restrictions, one) == profile.restrictions.end())
        profile.restrictions.push_back(one);
    return HeldProfile{format_profile(profile), std::move(profile)};
  });
  m.def("broken",
        [](const std::vector<RestrictionRow>& rows,
           const std::vector<std::pair<std::vector<int>, std::vector<int>>>& stages, int ranks, bool split) {
          std::vector<Stage> all;
          for (const auto& [layers, devices] : stages) all.push_back({.layers = layers, .devices = devices});
          const Restrictions restrictions = from_rows(rows);
          const Restriction* broken = first_broken(restrictions, all, ranks, split);
          return broken == nullptr ? std::pair<std::string, std::string>()
                                   : std::pair(words_of(*broken), option_of(*broken));
        });
  m.def("profile", &held_profile, py::arg("text"), py::arg("name"));
  m.def("profile_file",
        [](const std::string& path) { return held_profile(read_file(path, kMaxProfileBytes), path); });
  py::class_<HeldDevices>(m, "Devices")
      .def_readonly("text", &HeldDevices::text)
      .def_readonly("memory", &HeldDevices::memory)
      .def_property_readonly("count", [](const HeldDevices& d) { return d.on.devices; });
  m.def(
      "devices",
      [](int count, const std::string& memory, const std::vector<core::SharedCores>& hosts) {
        return HeldDevices{
            "", memory,
            hosts.empty() ? core::on_devices(count, memory) : core::on_shared_cores(count, memory, hosts)};
      },
      py::arg("count"), py::arg("memory"), py::arg("hosts"));
  m.def("cluster", &held_devices, py::arg("text"), py::arg("name"));
  m.def("cluster_file",
        [](const std::string& path) { return held_devices(read_file(path, kMaxClusterBytes), path); });
}

}  // namespace ostinato
