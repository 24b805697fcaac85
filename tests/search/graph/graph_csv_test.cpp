// SPDX-License-Identifier: Apache-2.0
#include "search/graph/csv.h"

#include <gtest/gtest.h>

#include <string>

#include "search/files/error.h"
#include "tests/search/graph/graph_small.h"

namespace ostinato::graph {
namespace {

const std::string kHeader = "Id,Out,In,Colocation,Tensor,Operations,RAM,Constraint,Name\n";
const std::string kDevicesHeader = "Id,RAM,Operations,Rates,Type\n";

std::string graph_error(const std::string& rows) {
  try {
    parse_graph_csv(kHeader + rows, "g.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string devices_error(const std::string& rows) {
  try {
    parse_devices_csv(kDevicesHeader + rows, "d.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<int> list(std::span<const int> row) { return {row.begin(), row.end()}; }

TEST(GraphCsvTest, RowsBecomeAGraph) {
  const OperatorGraph g = parse_graph_csv(kHeader +
                                              "30,,10;20,,7,5,2,GPU,sum\r\n"
                                              "\n"
                                              " 10 , 30 ,, 20 ,3,50,1,NO,left\n"
                                              "20,30,,,4,60,1,CPU\n",
                                          "g.csv");
  EXPECT_EQ(g.ids, (std::vector<std::int64_t>{10, 20, 30}));  // by id, whatever the order of the rows
  EXPECT_EQ(g.lines, (std::vector<int>{4, 5, 2}));
  EXPECT_EQ(g.names, (std::vector<std::string>{"left", "", "sum"}));
  EXPECT_EQ(list(g.predecessors[2]), (std::vector<int>{0, 1}));  // named at both ends, kept once
  EXPECT_EQ(list(g.successors[0]), (std::vector<int>{2}));
  EXPECT_EQ(g.memory, (std::vector<std::int64_t>{1 + 3, 1 + 4, 2 + 7 + 3 + 4}));
  EXPECT_EQ(g.group, (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(g.group_operations, (std::vector<std::int64_t>{110, 5}));
  EXPECT_EQ(g.kinds[g.group_kind[0]], "CPU");
  EXPECT_EQ(g.kinds[g.group_kind[1]], "GPU");
}

TEST(GraphCsvTest, AnEdgeMayBeNamedAtOneEnd) {
  const OperatorGraph g =
      parse_graph_csv(kHeader + "1,2,,,0,1,0,NO\n2,,,,0,1,0,NO\n3,,2,,0,1,0,NO\n", "g.csv");
  EXPECT_EQ(g.order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(list(g.successors[1]), (std::vector<int>{2}));
}

TEST(GraphCsvTest, RefusalsNameFileAndLine) {
  EXPECT_EQ(
      graph_error("1,,,,0,1,0\n"),
      "g.csv:2: 7 columns, but 8 are needed: id,successors,predecessors,same device,tensor size,operations,"
      "memory,device kind");
  EXPECT_EQ(graph_error("1,,,,0,1,0,NO\n1,,,,0,1,0,NO\n"),
            "g.csv:3: vertex 1 is given twice, first in line 2");
  EXPECT_EQ(graph_error("1,5,,,0,1,0,NO\n"),
            "g.csv:2: vertex 1 names 5 as a successor, but no row has that id");
  EXPECT_EQ(graph_error("1,,5,,0,1,0,NO\n"),
            "g.csv:2: vertex 1 names 5 as a predecessor, but no row has that id");
  EXPECT_EQ(graph_error("1,,,5,0,1,0,NO\n"),
            "g.csv:2: vertex 1 names 5 as a vertex on the same device, but no row has that id");
  EXPECT_EQ(graph_error("1,,,,0,x,0,NO\n"), "g.csv:2: operations is \"x\"; it must be a whole number");
  EXPECT_EQ(graph_error("1,,,,0,1.5,0,NO\n"), "g.csv:2: operations is \"1.5\"; it must be a whole number");
  EXPECT_EQ(graph_error("1,,,,0,,0,NO\n"), "g.csv:2: operations is \"\"; it must be a whole number");
  EXPECT_EQ(graph_error("1,,,,-4,1,0,NO\n"),
            "g.csv:2: tensor size is -4; it must be between 0 and 1000000000");
  EXPECT_EQ(graph_error("1,2;;3,,,0,1,0,NO\n"), "g.csv:2: successors is \"\"; it must be a whole number");
  EXPECT_EQ(graph_error("1,,,,0,1,0,\n"),
            "g.csv:2: the device kind is empty; write NO if any device will do");
  EXPECT_EQ(graph_error(""), "g.csv: the graph has no vertices");
  EXPECT_EQ(
      graph_error("1,,,2,0,1,0,CPU\n2,,,,0,1,0,GPU\n"),
      "g.csv:3: vertex 2 needs a GPU, but must share a device with vertex 1 (line 2), which needs a CPU");
}

TEST(GraphCsvTest, CyclesAreNamedInFull) {
  EXPECT_EQ(graph_error("1,1,,,0,1,0,NO\n"), "g.csv:2: vertex 1 follows itself");
  EXPECT_EQ(graph_error("1,2,,,0,1,0,NO\n2,3,,,0,1,0,NO\n3,4;5,,,0,1,0,NO\n4,2,,,0,1,0,NO\n5,,,,0,1,0,NO\n"),
            "g.csv:3: the graph has a cycle: 2 -> 3 -> 4 -> 2");
}

TEST(GraphCsvTest, TheHeaderIsNeeded) {
  for (const std::string text : {"1,,,,0,1,0,NO\n", ""}) {
    try {
      parse_graph_csv(text, "g.csv");
      FAIL() << "accepted without a header";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("header"), std::string::npos) << error.what();
    }
  }
}

std::string header_error(const std::string& header) {
  try {
    parse_graph_csv(header + "\n1,,,,0,1,0,NO\n", "g.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(GraphCsvTest, ColumnsStandWhereTheHeaderSays) {
  const OperatorGraph g = parse_graph_csv(
      "name,Device kind,remark,memory,operations,tensor_size,same device,predecessors,successors,id\n"
      "left,GPU,no,7,50,3,,,2,1\nright,NO,no,8,60,4,,,,2\n",
      "g.csv");
  EXPECT_EQ(g.operations, (std::vector<std::int64_t>{50, 60}));
  EXPECT_EQ(g.memory, (std::vector<std::int64_t>{7 + 3, 8 + 4 + 3}));
  EXPECT_EQ(g.names[0], "left");
  EXPECT_EQ(g.kinds[g.group_kind[g.group[0]]], "GPU");
  EXPECT_EQ(list(g.successors[0]), (std::vector<int>{1}));
  const GraphDevices d = parse_devices_csv("kind,speed,mem,rates,id\nCPU,5,100,9,7\nGPU,6,200,,8\n", "d.csv");
  EXPECT_EQ(d.devices[1].speed, 6);
  EXPECT_EQ(d.devices[1].memory, 200);
  EXPECT_EQ(d.rates, (std::vector<std::int64_t>{0, 9, 9, 0}));
}

TEST(GraphCsvTest, NamesMayBeShortWhereTheyAreClear) {
  for (const char* header :
       {"id,s,p,c,t,o,m,k,n", "id,s,p,m,t,o,m,k,n", "id,succ,pred,same,tensor,ops,mem,kind",
        "Id,(Outgoing) node,(Incoming) node,Colocation nodes,#tensorSize, #operations, RAM "
        "storage,Device constraint ,name"})
    EXPECT_EQ(header_error(header), "no error") << header;
  const std::string usual =
      "; the usual header is \"id,successors,predecessors,same device,tensor size,operations,memory,device "
      "kind\"";
  EXPECT_EQ(
      header_error("id,s,p,c,o,t,m,k"),
      "g.csv:1: the column 's' may be \"successors\" or \"same device\"; write its name in full" + usual);
  EXPECT_EQ(header_error("id,out,in,colocation,opreations,tensor,ram,kind"),
            "g.csv:1: no column is \"operations\"; did you mean 'opreations'?" + usual);
  EXPECT_EQ(header_error("id,out,in,colocation,memory,operations,ram,kind"),
            "g.csv:1: two columns are \"memory\": 'memory' and 'ram'" + usual);
  EXPECT_EQ(header_error("a,b,c,d,e,f,g,h").substr(0, 9), "g.csv:1: ");
}

TEST(DevicesCsvTest, TheTriangleHoldsBothDirections) {
  const GraphDevices d =
      parse_devices_csv(kDevicesHeader + "7,100,5,20;30,CPU\n8,100,6,40,GPU\n9,90,1,,CPU\n", "d");
  EXPECT_EQ(d.rates, (std::vector<std::int64_t>{0, 20, 30, 20, 0, 40, 30, 40, 0}));
  EXPECT_EQ(d.devices[2].memory, 90);
  EXPECT_EQ(d.devices[1].speed, 6);
}

TEST(DevicesCsvTest, TheFullMatrixMayDifferByDirection) {
  const GraphDevices d = parse_devices_csv(kDevicesHeader + "0,100,5,0;3,CPU\n1,100,6,4;0,GPU\n", "d");
  EXPECT_EQ(d.rates, (std::vector<std::int64_t>{0, 3, 4, 0}));
  EXPECT_EQ(parse_devices_csv(kDevicesHeader + "0,100,5,,CPU\n", "d").size(), 1);
}

TEST(DevicesCsvTest, RefusalsNameFileAndLine) {
  EXPECT_EQ(devices_error("0,100,5,,CPU\n0,100,5,,CPU\n"),
            "d.csv:3: device 0 is given twice, first in line 2");
  EXPECT_EQ(devices_error("0,100,0,,CPU\n"),
            "d.csv:2: operations per time unit is 0; it must be between 1 and 1000000000");
  EXPECT_EQ(devices_error("0,100,5,1;2,CPU\n1,100,5,,CPU\n"),
            "d.csv:2: 2 rates, but 1 is needed: one to each later device");
  EXPECT_EQ(devices_error("0,100,5,1;2,CPU\n1,100,5,1;2;3,CPU\n"),
            "d.csv:3: 3 rates, but 2 are needed: one to every device, itself included");
  EXPECT_EQ(devices_error("0,100,5,0,CPU\n1,100,5,,CPU\n"),
            "d.csv:2: the rate to device 1 is 0; it must be at least 1");
  EXPECT_EQ(devices_error("0,100,5,,\n"), "d.csv:2: the kind is empty; give one, such as CPU or GPU");
  EXPECT_EQ(devices_error("0,100\n"),
            "d.csv:2: 2 columns, but 5 are needed: id,memory,operations per time unit,rates,kind");
  EXPECT_EQ(devices_error(""), "d.csv: the file has no devices");
}

TEST(GraphCostsTest, AKindWithoutADeviceIsInfeasible) {
  const OperatorGraph g = parse_graph_csv(kHeader + "1,,,,0,1,0,TPU\n", "g.csv");
  const GraphDevices d = test::devices_of({1, 2});
  try {
    GraphCosts costs(g, d);
    FAIL() << "accepted";
  } catch (const InfeasibleError& error) {
    EXPECT_STREQ(
        error.what(),
        "g.csv:2: vertex 1 needs a device of the kind 'TPU', but devices has only CPU; did you mean 'CPU'?");
  }
}

TEST(GraphCostsTest, DurationsRoundUpAndSumsCannotOverflow) {
  const OperatorGraph g = parse_graph_csv(kHeader + "1,,,,10,1,0,NO\n", "g.csv");
  const GraphDevices d = test::devices_of({3, 1}, 7);
  const GraphCosts costs(g, d);
  EXPECT_EQ(costs.execution(0, 0), 333'333'334);
  EXPECT_EQ(costs.execution(0, 1), kTicksPerUnit);
  EXPECT_EQ(costs.transfer(0, 0, 1), 1'428'571'429);
  EXPECT_EQ(costs.transfer(0, 1, 1), 0);
  const OperatorGraph big = parse_graph_csv(
      kHeader + "1,,,,0,1000000000,0,NO\n2,,,,0,1000000000,0,NO\n3,,,,0,1000000000,0,NO\n", "g.csv");
  EXPECT_THROW(GraphCosts(big, d), InputError);
}

}  // namespace
}  // namespace ostinato::graph
